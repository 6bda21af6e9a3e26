# SPDX-License-Identifier: Apache-2.0
"""Makes fixtures/xla_fsdp: per-rank files that PyTorch/XLA's own FSDP wrote, and the whole tensors they hold.

    python3 -m venv /tmp/xla && /tmp/xla/bin/pip install torch==2.9.0 torch_xla==2.9.0 numpy safetensors
    /tmp/xla/bin/python tests/checkpoint/make_xla_fsdp_fixture.py

Runs on the CPU device, one rank after the other: wrapping a module as rank r of 2 (`sharding_rank`) moves no data
between ranks, and the gradients are a formula of the parameter's values, so no collective is needed.
Expected values: parameters from XLA's own consolidation, optimizer state cut from the ranks' shards here; both are
compared with the same step of the unsharded module.
"""
import math
import os
import pathlib
import sys

os.environ["PJRT_DEVICE"] = "CPU"

import safetensors.torch
import torch
import torch_xla.core.xla_model as xm
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel, consolidate_sharded_model_checkpoints

WORLD = 2
FOLDER = pathlib.Path(__file__).parent / "fixtures" / "xla_fsdp"
SETTINGS = {"plain": {}, "flat": {"flatten_parameters": True}, "dim0": {"shard_param_on_dim_0": True}}


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(20, 30)
        self.norm = torch.nn.BatchNorm1d(30)

    def forward(self, x):
        return self.norm(self.fc(x))


class Model(torch.nn.Module):
    """An inner unit, leftover parameters and buffers of the root, a parameter of no module of its own."""

    def __init__(self, wrap):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.pos_embed = torch.nn.Parameter(torch.randn(1, 3, 7, generator=generator))
        block = Block()
        self.head = torch.nn.Linear(30, 5)
        for module in (block, self.head):
            for parameter in module.parameters():
                parameter.data = torch.randn(parameter.shape, generator=generator)
        block.norm.running_mean += torch.randn(30, generator=generator)
        self.blocks = torch.nn.Sequential(wrap(block))

    def forward(self, x):
        return self.head(self.blocks(x)) + self.pos_embed.sum()


def step(parameters):
    optimizer = torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.05)
    for _ in range(2):
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad = 0.5 * parameter.detach() + 0.125
        optimizer.step()
        xm.mark_step()
    return optimizer


def save_rank(name, rank, settings):
    def wrap(module):
        return XlaFullyShardedDataParallel(
            module, sharding_groups=[list(range(WORLD))], sharding_rank=rank, sharding_world_size=WORLD, **settings)

    model = wrap(Model(wrap))
    optimizer = step(model.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
    checkpoint = {"model": model.state_dict(), "shard_metadata": model.get_shard_metadata(),
                  "optimizer": optimizer.state_dict(), "lr_scheduler": scheduler.state_dict()}
    xm.save(checkpoint, str(FOLDER / f"{name}_rank-{rank}-of-{WORLD}.pth"), master_only=False)


def whole_state(name, checkpoints):
    """The moments of each parameter, from the shards of all ranks."""
    metadata = checkpoints[0]["shard_metadata"]
    sharded = [key for key in checkpoints[0]["model"] if "_fsdp_shard" in key]
    tensors = {}
    for index, key in enumerate(sharded):
        prefix, _, leaf = key.rpartition("_fsdp_shard")
        info = metadata["shard_info"][prefix.rstrip(".")]["_fsdp_shard" + leaf]
        for kind in ("exp_avg", "exp_avg_sq"):
            whole = torch.cat([each["optimizer"]["state"][index][kind] for each in checkpoints])
            size = info["_orig_size"]
            whole = whole[:size[0]] if whole.dim() > 1 or name == "dim0" else whole[:math.prod(size)].view(size)
            full = prefix + info["_orig_name"]
            parts = {full: whole}
            if "flat_param_" in full:
                names, shapes, numels = metadata["flatten_info"][full]
                parent = full.rpartition(".")[0] + "."
                parts = {parent + n: part.view(s) for n, part, s in zip(names, whole.split(numels), shapes)}
            for part, tensor in parts.items():
                part = part.replace("_fsdp_wrapped_module.", "").replace("_fpw_module.", "")
                tensors[f"adamw.{kind}/{part}"] = tensor.clone()
    return tensors


def make(name, settings):
    for rank in range(WORLD):
        save_rank(name, rank, settings)
    whole, _ = consolidate_sharded_model_checkpoints(str(FOLDER / name) + "_rank-", "*.pth", save_model=False)
    checkpoints = [torch.load(FOLDER / f"{name}_rank-{rank}-of-{WORLD}.pth") for rank in range(WORLD)]
    tensors = {key: tensor.contiguous() for key, tensor in whole.items()} | whole_state(name, checkpoints)
    plain = Model(lambda module: module)
    optimizer = step(plain.parameters())
    for key, parameter in plain.named_parameters():
        torch.testing.assert_close(tensors[key], parameter.detach())
        torch.testing.assert_close(tensors[f"adamw.exp_avg/{key}"], optimizer.state[parameter]["exp_avg"])
        torch.testing.assert_close(tensors[f"adamw.exp_avg_sq/{key}"], optimizer.state[parameter]["exp_avg_sq"])
    for key, buffer in plain.named_buffers():
        torch.testing.assert_close(tensors[key], buffer)
    safetensors.torch.save_file(tensors, FOLDER / f"{name}_whole.safetensors")
    print(name, len(tensors), "tensors")


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, settings in SETTINGS.items():
        make(name, settings)


if __name__ == "__main__":
    sys.exit(main())
