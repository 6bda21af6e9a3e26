# SPDX-License-Identifier: Apache-2.0
"""PyTorch's FSDP2 on two processes against the recorded 20-step curve of tests/models/fixtures/parity.json, the
one that train.Parity asks of Tessera's own two sharded ranks (<= 1e-4): both sharded programs give one curve.

    fsdp2_curve.py        starts its two processes itself; exit code 77 where PyTorch or timm are missing
"""
import json
import os
import pathlib
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
RANKS = 2
TOLERANCE = 1e-3


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def curve_of_a_rank():
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    sys.path.insert(0, str(ROOT / "tests/models"))
    import make_parity_fixture as formula

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    fixture = json.loads(formula.FIXTURE.read_text())["training"]
    recipe, config = fixture["recipe"], fixture["config"]
    model, _ = formula.small(**config)
    formula.fill(model)
    model.train()
    mesh = init_device_mesh("cpu", (RANKS,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    is_matrix = [p for p in model.parameters() if p.ndim >= 2 and p.shape[0] != 1]
    rest = [p for p in model.parameters() if not (p.ndim >= 2 and p.shape[0] != 1)]
    optimizer = torch.optim.AdamW([{"params": is_matrix, "weight_decay": recipe["weight_decay"]},
                                   {"params": rest, "weight_decay": 0.0}], lr=recipe["lr"])
    share = recipe["batch"] // RANKS
    mine = slice(dist.get_rank() * share, (dist.get_rank() + 1) * share)
    losses = []
    for step in range(recipe["steps"]):
        for group in optimizer.param_groups:
            group["lr"] = recipe["lr"] * min(1.0, (step + 1) / recipe["warmup"])
        number = step % recipe["batches"]
        images = formula.images(f"images/{number}", recipe["batch"], model)[mine].float()
        labels = formula.targets(recipe["batch"], config["classes"], number)[mine]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe["clip"])
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / RANKS)
    if dist.get_rank() == 0:
        errors = [abs(a - b) for a, b in zip(losses, fixture["losses"], strict=True)]
        print(f"loss {losses[0]:.4f} to {losses[-1]:.4f} over {len(losses)} steps; "
              f"largest difference {max(errors):.2g}", flush=True)
        assert losses[-1] < 0.9 * losses[0], losses
        assert max(errors) <= TOLERANCE, errors
    dist.destroy_process_group()


def start():
    python = os.environ.get("TESSERA_PEERS_PYTHON", str(ROOT / ".venv-peers/bin/python"))
    if not os.access(python, os.X_OK):
        print(f"skipped: [tests.fsdp2_curve] a Python with PyTorch and timm was expected: not found ({python}; run ./dev peers, "
              "or set TESSERA_PEERS_PYTHON)")
        return 1 if os.environ.get("TESSERA_NO_SKIP") == "1" else 77
    port = str(free_port())
    ranks = [subprocess.Popen([python, __file__], env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(RANKS),
                                                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
             for rank in range(RANKS)]
    try:
        return max(abs(rank.wait(timeout=240)) for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()


if __name__ == "__main__":
    if "RANK" in os.environ:
        curve_of_a_rank()
    else:
        sys.exit(start())
