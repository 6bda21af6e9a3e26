# SPDX-License-Identifier: Apache-2.0
"""A run goes on from files of PyTorch/XLA's FSDP as it would have from its own checkpoint, bit for bit.

The half of this file below `write` runs under the Python that has torch and safetensors: it lays a consolidated file
out as two ranks of XLA's FSDP save it (tests/checkpoint/fixtures/xla_fsdp holds files that XLA itself wrote).
"""
import collections
import subprocess
import sys

WORLD, SEPARATOR, STEPS = 2, "_FSDP_SHARD_SEPARATOR_", 4


def training_goes_on_from_imported_files():
    from harness import check, losses, scratch, settings, tessera, tiny_recipe, train
    from peers import peers_python

    python = peers_python("torch", "safetensors")
    with scratch() as folder:
        constant = settings(schedule__name="constant")
        train(folder, *constant, *settings(train__steps=STEPS)).done()
        tessera("checkpoint", "consolidate", "run", "-o", "all.safetensors", "--with-optimizer", folder=folder).done()
        done = subprocess.run([python, __file__, "write", folder / "all.safetensors", folder], capture_output=True,
                              text=True, timeout=120)
        check(done.returncode == 0, done.stdout, done.stderr)
        out = tessera("checkpoint", "import-xla-fsdp", "--ckpt_prefix", folder / "epoch_1_rank_", "--ckpt_suffix",
                      "*.ckpt", "--rename", "norm.=fc_norm.", "--recipe", tiny_recipe(folder), "-o",
                      "imported/checkpoints", "--ranks", 3, folder=folder).done()
        check("read 2 ranks" in out and f"step {STEPS}" in out, out)
        tessera("eval", "imported", folder=folder).done()
        longer = [*constant, *settings(train__steps=2 * STEPS)]
        train(folder, "--resume", folder / "imported/checkpoints", *longer, run="other").done()
        train(folder, "--resume", "latest", *longer).done()
        own = [row for row in losses(folder / "run") if row[0] > STEPS]
        check(len(own) == STEPS and losses(folder / "other") == own, losses(folder / "other"), own)


def write(source, folder):
    import safetensors.torch
    import torch

    tensors = safetensors.torch.load_file(source)
    names = [name for name in tensors if "/" not in name]

    def shard(tensor, rank):
        flat = tensor.flatten()
        flat = torch.nn.functional.pad(flat, [0, -flat.numel() % (WORLD * 128)])
        return flat.chunk(WORLD)[rank].clone()

    for rank in range(WORLD):
        model, info, state = collections.OrderedDict(), {}, {}
        for index, name in enumerate(names):
            original = "_fsdp_wrapped_module._fpw_module." + name.replace("fc_norm.", "norm.")
            key = "_fsdp_shard" + SEPARATOR + original.replace(".", SEPARATOR)
            model[key] = shard(tensors[name], rank)
            info[key] = {"_orig_size": tensors[name].shape, "_orig_name": original}
            state[index] = {kind: shard(tensors[f"adamw.{kind}/{name}"], rank) for kind in ("exp_avg", "exp_avg_sq")}
            state[index]["step"] = torch.tensor(float(STEPS))
        metadata = {"shard_info": {"": info}, "flatten_info": {}, "buffer_info": {}, "world_size": WORLD, "rank": rank}
        optimizer = {"state": state, "param_groups": [{"lr": 1e-3, "params": list(range(len(names)))}]}
        torch.save({"model": model, "shard_metadata": metadata, "optimizer": optimizer},
                   f"{folder}/epoch_1_rank_{rank}.ckpt")


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        write(*sys.argv[2:])
    else:
        from harness import main

        main(training_goes_on_from_imported_files)
