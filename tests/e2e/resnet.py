# SPDX-License-Identifier: Apache-2.0
"""A model that is no ViT through every command: train, resume on another number of ranks, eval, predict, export.

The half of this file below `load` runs under the Python that has torch, torchvision and safetensors.
"""
import json
import pathlib
import struct
import subprocess
import sys
import zlib

TINY = """
name = "tiny-resnet"
[model]
preset = "resnet18"
image_size = 32
classes = 10
[data]
source = "fake:64"
[train]
batch = 16
steps = 6
log_every = 1
eval_every_steps = 3
[optimizer]
lr = 1e-3
[precision]
compute = "fp32"
[checkpoint]
every_steps = 3
[run]
threads = 1
"""


def png(path, size=40):
    """A small picture, written by hand: the tests need nothing but Python."""
    rows = b"".join(b"\0" + bytes((x * 6 + y * c) % 256 for x in range(size) for c in (1, 2, 3)) for y in range(size))

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def trained(folder):
    """A run of 6 steps on 2 ranks; its summary."""
    from harness import summary, tiny_recipe, train

    text = train(folder, "--procs", 2, recipe=tiny_recipe(folder, TINY)).done(300)
    return text, summary(folder / "run")


def every_command_takes_it():
    from harness import check, checkpoints, losses, scratch, settings, summary, tessera, tiny_recipe, train

    with scratch() as folder:
        text, found = trained(folder)
        check("ResNet, basic blocks 2-2-2-2, width 64, of a 32 px image" in text, text)
        check(found["val_samples"] > 0 and found["steps"] == 6, found)
        check(found["parameters"] == 11181642, found["parameters"])
        check([unit["name"] for unit in found["plan"]["units"]][:3] == ["stem", "layer1.0", "layer1.1"], found["plan"])

        # From step 3 on 1 rank: each rank normed its own samples, so another curve, but one that goes on.
        train(folder, "--resume", checkpoints(folder / "run")[0], *settings(train__steps=5), run="resumed",
              recipe=tiny_recipe(folder, TINY)).done(300)
        steps = [step for step, _ in losses(folder / "resumed")]
        check(steps == [4, 5], steps)
        check(summary(folder / "resumed")["val_samples"] == found["val_samples"], "evaluated")

        evaluated = []
        for procs in (1, 3):
            tessera("eval", folder / "run", "--procs", procs, "--output", folder / "eval.json", folder=folder).done(120)
            evaluated.append(json.loads((folder / "eval.json").read_text()))
        for one in evaluated:
            check(abs(one["loss"] - evaluated[0]["loss"]) <= 1e-5, evaluated)

        png(folder / "picture.png")
        predicted = tessera("predict", folder / "run", folder / "picture.png", "--json", folder=folder, stderr=subprocess.DEVNULL).done()
        entry = json.loads(predicted)[0]
        check(len(entry["predictions"]) == 5, entry)

        shown = tessera("checkpoint", "inspect", found["checkpoint"], folder=folder).done()
        check("ResNet, basic blocks 2-2-2-2" in shown and "buffer: 60 tensors" in shown, shown)


def what_one_rank_saved_another_number_continues():
    """With statistics over all ranks 2 ranks, and 1 after a resume, follow one curve."""
    from harness import check, checkpoints, losses, scratch, settings, tiny_recipe, train

    with scratch() as folder:
        keys = settings(model__batch_norm_sync="true")
        train(folder, "--procs", 2, *keys, recipe=tiny_recipe(folder, TINY)).done(300)
        train(folder, "--resume", checkpoints(folder / "run")[0], *keys, run="one",
              recipe=tiny_recipe(folder, TINY)).done(300)
        whole, rest = dict(losses(folder / "run")), dict(losses(folder / "one"))
        check(sorted(rest) == [4, 5, 6], rest)
        for step, loss in rest.items():
            check(abs(loss - whole[step]) <= 1e-3 * whole[step], step, loss, whole[step])


def torchvision_loads_the_export():
    from harness import check, scratch, tessera
    from peers import peers_python

    python = peers_python("torch", "torchvision", "safetensors")
    with scratch() as folder:
        _, found = trained(folder)
        tessera("checkpoint", "export", found["checkpoint"], "weights.safetensors", folder=folder).done()
        done = subprocess.run([python, __file__, "load", folder / "weights.safetensors"], capture_output=True, text=True,
                              timeout=300)
        check(done.returncode == 0, done.stdout, done.stderr)
        loaded = json.loads(done.stdout)
        check(loaded["parameters"] == found["parameters"] and loaded["batches"] == 6, loaded)
        print("  ", loaded, flush=True)


def load(path):
    import safetensors.torch
    import torch
    import torchvision

    model = torchvision.models.resnet18(num_classes=10)
    model.load_state_dict(safetensors.torch.load_file(path), strict=True)
    model.eval()
    with torch.no_grad():
        logits = model(torch.zeros(1, 3, 32, 32))
    assert logits.isfinite().all() and model.bn1.running_var.ne(1).all()
    print(json.dumps({"parameters": sum(p.numel() for p in model.parameters()),
                      "batches": model.bn1.num_batches_tracked.item()}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["load"]:
        load(pathlib.Path(sys.argv[2]))
    else:
        from harness import main

        main(every_command_takes_it, what_one_rank_saved_another_number_continues, torchvision_loads_the_export)
