# SPDX-License-Identifier: Apache-2.0
"""Weights leave Tessera whole: timm, given the exported file, finds the same top-1 on the 10,000 test images.

The half of this file below `evaluate` runs under the Python that has torch, timm and safetensors.
"""
import gzip
import json
import os
import pathlib
import subprocess
import sys
import tomllib

TOLERANCE = 0.05  # points


def exported_weights_agree():
    from harness import PROGRAM, SOURCE, Missing, check, scratch, settings, summary, tessera, train
    from peers import peers_python

    python = peers_python("torch", "timm", "safetensors")
    data = pathlib.Path(os.environ.get("TESSERA_FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))
    if not (data / "t10k-images-idx3-ubyte.gz").exists():
        raise Missing(f"no Fashion-MNIST in {data} (apt-get install dataset-fashion-mnist)")
    with scratch() as folder:
        keys = settings(train__epochs=0, train__steps=40, schedule__warmup_epochs=0, schedule__warmup_steps=5,
                        train__eval_every_epochs=0)
        train(folder, "--procs", 2, *keys, recipe=SOURCE / "recipes/quickstart.toml").done(300)
        expected = summary(folder / "run")
        tessera("checkpoint", "export", expected["checkpoint"], "weights.safetensors", folder=folder).done()
        words = [python, __file__, "evaluate", folder / "run/recipe.toml", folder / "weights.safetensors", data]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
        check(done.returncode == 0, done.stdout, done.stderr)
        found = json.loads(done.stdout)
        print(f"  Tessera: top-1 {expected['val_top1']:.2f} %, loss {expected['val_loss']:.6f}", flush=True)
        print(f"  timm:    top-1 {found['top1']:.2f} %, loss {found['loss']:.6f}", flush=True)
        check(expected["val_top1"] > 40, "40 steps learn something:", expected["val_top1"])
        check(found["samples"] == expected["val_samples"] == 10000, found)
        check(found["parameters"] == expected["parameters"], found, expected["parameters"])
        check(abs(found["top1"] - expected["val_top1"]) <= TOLERANCE, "top-1:", found, expected["val_top1"])
        check(abs(found["loss"] - expected["val_loss"]) <= 1e-4 * expected["val_loss"], found, expected["val_loss"])


def evaluate(recipe_path, weights_path, data):
    import numpy
    import safetensors.torch
    import timm.models.vision_transformer
    import torch

    recipe = tomllib.loads(pathlib.Path(recipe_path).read_text())
    model_keys, data_keys = recipe["model"], recipe["data"]
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=model_keys["image_size"], patch_size=model_keys["patch_size"], in_chans=model_keys["channels"],
        num_classes=model_keys["classes"], embed_dim=model_keys["width"], depth=model_keys["depth"],
        num_heads=model_keys["heads"], mlp_ratio=model_keys["mlp_width"] / model_keys["width"],
        class_token=model_keys["class_token"], global_pool={"gap": "avg", "cls": "token"}[model_keys["pool"]])
    model.load_state_dict(safetensors.torch.load_file(weights_path), strict=True)
    model.eval()

    def read(name, header):
        return numpy.frombuffer(gzip.decompress((pathlib.Path(data) / name).read_bytes()), numpy.uint8, offset=header)

    pixels = read("t10k-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)
    labels = torch.tensor(read("t10k-labels-idx1-ubyte.gz", 8).astype(numpy.int64))
    images = (torch.tensor(pixels.astype(numpy.float32)) / 255 - data_keys["mean"][0]) / data_keys["std"][0]
    with torch.no_grad():
        logits = torch.cat([model(part) for part in images.split(500)])
    print(json.dumps({
        "top1": 100.0 * (logits.argmax(1) == labels).double().mean().item(),
        "loss": torch.nn.functional.cross_entropy(logits, labels).item(),
        "samples": len(labels),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }))


if __name__ == "__main__":
    if sys.argv[1:2] == ["evaluate"]:
        evaluate(*sys.argv[2:])
    else:
        from harness import main

        main(exported_weights_agree)
