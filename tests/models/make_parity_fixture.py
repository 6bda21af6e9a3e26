# SPDX-License-Identifier: Apache-2.0
"""Makes tests/models/fixtures/parity.json: what timm and PyTorch compute for models, images and weights that
the C++ tests can make themselves.

Weights and images come from a formula (integer hash of (name, element) -> float, exact in float32), so the
fixture holds results only: logits, losses, and for every gradient tensor its largest value, its L2 norm, a
sample of elements and dot products with three pseudo-random vectors. Everything is computed in float64, so
that the fixture is the same on any machine to the digits that are stored.

    make_parity_fixture.py            writes the fixture
    make_parity_fixture.py --check    makes it again and compares; exit code 1 where they differ
    ... --gradients FILE              also writes every gradient whole, as "CASE/NAME" of a safetensors file, in float32
"""
import argparse
import collections
import functools
import json
import math
import pathlib
import sys

import numpy as np
import safetensors.torch
import timm
import torch
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer

FIXTURE = pathlib.Path(__file__).parent / "fixtures" / "parity.json"
SAMPLES = 32
PROJECTIONS = 3
MASK = np.uint64(0xFFFFFFFFFFFFFFFF)


def mix(z):
    """SplitMix64's step and finaliser, on uint64 arrays (wrapping)."""
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def words(name, count):
    """Word i of the stream `name`: mix(mix(fnv1a(name)) ^ i)."""
    key = 0xCBF29CE484222325
    for byte in name.encode():
        key = ((key ^ byte) * 0x100000001B3) & int(MASK)
    with np.errstate(over="ignore"):
        return mix(mix(np.array([key], dtype=np.uint64)) ^ np.arange(count, dtype=np.uint64))


def uniform(name, count):
    """float32 in [-1, 1): 24 bits of each word, exact."""
    top = (words(name, count) >> np.uint64(40)).astype(np.int64) - (1 << 23)
    return top.astype(np.float32) * np.float32(2.0 ** -23)


def weights(name, shape):
    """The float32 value of a parameter: a scale that keeps activations and gradients healthy."""
    count = math.prod(shape)
    u = uniform(name, count)
    if name.endswith("gamma"):
        value = np.float32(0.5) + u * np.float32(0.25)
    elif name.endswith("weight") and len(shape) == 1:
        value = np.float32(1.0) + u * np.float32(0.25)
    elif name.endswith("weight"):
        fan_in = math.prod(shape[1:])
        gain = 1 if name == "head.weight" else 0
        value = u * np.float32(2.0 ** (gain - (fan_in.bit_length() - 1) // 2))
    elif name.endswith("bias"):
        value = u * np.float32(0.125)
    else:
        value = u * np.float32(0.5)
    return torch.from_numpy(value.reshape(shape))


def fill(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights(name, tuple(parameter.shape)))


def images(name, count, model):
    patches = model.patch_embed if hasattr(model, "patch_embed") else model.stem
    shape = (count, model.in_chans, *patches.img_size)
    return torch.from_numpy(uniform(name, math.prod(shape)).reshape(shape)).double()


def targets(count, classes, step=0):
    return torch.tensor([(7 + 37 * i + 11 * step) % classes for i in range(count)])


def digits(values, count=9):
    return [float(f"{v:.{count}g}") for v in values]


def describe_gradient(name, gradient):
    flat = gradient.detach().reshape(-1).numpy()
    index = (words(name + "/sample", SAMPLES) % np.uint64(flat.size)).astype(np.int64)
    dots = [float(flat @ uniform(f"{name}/projection/{k}", flat.size).astype(np.float64))
            for k in range(PROJECTIONS)]
    return {"shape": list(gradient.shape), "max": digits([np.abs(flat).max()])[0],
            "norm": digits([np.linalg.norm(flat)])[0], "sample": digits(flat[index], 7),
            "projections": digits(dots, 7)}


def parity_case(model, config, batch, whole):
    """`whole`: takes the gradients, by name."""
    model = model.double().train()
    fill(model)
    logits = model(images("images", batch, model))
    loss = torch.nn.functional.cross_entropy(logits, targets(batch, model.num_classes))
    loss.backward()
    whole.update((name, p.grad.float().contiguous()) for name, p in model.named_parameters())
    return {"config": config, "batch": batch, "logits_std": digits([logits.std().item()])[0],
            "logits": digits(logits.detach().reshape(-1).tolist()), "loss": digits([loss.item()])[0],
            "gradients": {name: describe_gradient(name, p.grad) for name, p in model.named_parameters()}}


def small(**changes):
    """A config in Tessera's words and the timm model for it."""
    config = dict(image_size=48, patch_size=8, channels=3, width=96, depth=2, heads=3, mlp_width=384,
                  classes=50, registers=0, class_token=True, pool="token", qk_norm=False, layer_scale=0.0)
    config.update(changes)
    kind = VisionTransformerDistilled if config.get("distillation_token") else VisionTransformer
    if config.get("norm_before_pool"):
        kind = functools.partial(kind, fc_norm=False)
    model = kind(
        img_size=config["image_size"], patch_size=config["patch_size"], in_chans=config["channels"],
        num_classes=config["classes"], global_pool=config["pool"], embed_dim=config["width"],
        depth=config["depth"], num_heads=config["heads"], mlp_ratio=config["mlp_width"] / config["width"],
        qk_norm=config["qk_norm"], init_values=config["layer_scale"] or None,
        class_token=config["class_token"], reg_tokens=config["registers"],
        norm_layer=functools.partial(torch.nn.LayerNorm, eps=config.get("norm_epsilon", 1e-6)))
    if config.get("head") == "tanh":
        add_tanh_layer(model)
    return model, config


def add_tanh_layer(model):
    """The two-layer head of the ViT paper's pretraining, which timm no longer has; the names it had there."""
    layers = [("fc", torch.nn.Linear(model.embed_dim, model.embed_dim)), ("act", torch.nn.Tanh())]
    model.pre_logits = torch.nn.Sequential(collections.OrderedDict(layers))
    model.forward_head = lambda x: model.head(model.pre_logits(model.fc_norm(model.pool(x))))


def training_case():
    """20 steps of AdamW: warm-up over 5 steps, clipping by global norm, weight decay on matrices only."""
    model, config = small(image_size=32, width=64, heads=4, mlp_width=256, depth=3, classes=10)
    model = model.double().train()
    fill(model)
    recipe = dict(steps=20, batches=2, batch=16, lr=1e-3, weight_decay=0.05, clip=1.0, warmup=5)
    decay = [p for p in model.parameters() if p.ndim >= 2 and p.shape[0] != 1]
    rest = [p for p in model.parameters() if not (p.ndim >= 2 and p.shape[0] != 1)]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": recipe["weight_decay"]},
                                   {"params": rest, "weight_decay": 0.0}], lr=recipe["lr"])
    losses, norms = [], []
    for step in range(recipe["steps"]):
        for group in optimizer.param_groups:
            group["lr"] = recipe["lr"] * min(1.0, (step + 1) / recipe["warmup"])
        batch = step % recipe["batches"]
        logits = model(images(f"images/{batch}", recipe["batch"], model))
        loss = torch.nn.functional.cross_entropy(logits, targets(recipe["batch"], 10, batch))
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), recipe["clip"]).item())
        optimizer.step()
        losses.append(loss.item())
    return {"config": config, "recipe": recipe, "losses": digits(losses), "gradient_norms": digits(norms)}


def make():
    """The fixture, and every gradient by "CASE/NAME"."""
    torch.manual_seed(0)
    tiny = timm.create_model("vit_tiny_patch16_224", pretrained=False)
    cases = {
        "vit_tiny_patch16_224": (tiny, "vit_tiny_patch16_224", 2),
        "gap_no_class_token": (*small(pool="avg", class_token=False), 4),
        "registers_layer_scale": (*small(registers=4, layer_scale=0.1), 4),
        "registers_gap_qk_norm": (*small(registers=2, pool="avg", qk_norm=True), 4),
        "attention_pool": (*small(pool="map", class_token=False), 4),
        "distilled": (*small(distillation_token=True), 4),
        "gap_norm_before_pool": (*small(pool="avg", class_token=False, norm_before_pool=True), 4),
        "tanh_head_gray_large_epsilon": (*small(head="tanh", channels=1, norm_epsilon=1e-2), 4),
    }
    described, gradients = {}, {}
    for case, arguments in cases.items():
        whole = {}
        described[case] = parity_case(*arguments, whole)
        gradients |= {f"{case}/{name}": gradient for name, gradient in whole.items()}
    fixture = {"timm": timm.__version__, "torch": torch.__version__.split("+")[0], "cases": described,
               "training": training_case()}
    return fixture, gradients


ZERO = 1e-13  # what is zero but for rounding, as the gradient of a key's bias, differs from CPU to CPU


def differences(path, a, b, out):
    """Numbers may differ in the last stored digits; all else must be equal."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        for key in a:
            differences(f"{path}.{key}", a[key], b[key], out)
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        scale = max([abs(v) for v in a if isinstance(v, float)], default=0.0)
        for i, (x, y) in enumerate(zip(a, b)):
            if not (isinstance(x, float) and isinstance(y, float) and abs(x - y) <= 2e-6 * scale + ZERO):
                differences(f"{path}[{i}]", x, y, out)
    elif isinstance(a, (int, float)) and isinstance(b, (int, float)) and not isinstance(a, bool):
        if abs(a - b) > 2e-6 * max(abs(a), abs(b)) + ZERO:
            out.append(f"{path}: {a} in the fixture, {b} now")
    elif a != b:
        out.append(f"{path}: {a} in the fixture, {b} now")


def keep(fixture, made, check):
    """Writes the fixture, or with `check` compares it with what was made. An exit code."""
    if not check:
        fixture.parent.mkdir(exist_ok=True)
        fixture.write_text(json.dumps(made, separators=(",", ":")) + "\n")
        print(f"wrote {fixture.name}: {fixture.stat().st_size} bytes")
        return 0
    out = []
    differences("fixture", json.loads(fixture.read_text()), made, out)
    print("\n".join(out[:20]) or "the fixture is what is computed now")
    return 1 if out else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed fixture")
    parser.add_argument("--gradients", metavar="FILE", help="write every gradient whole")
    arguments = parser.parse_args()
    made, gradients = make()
    if arguments.gradients:
        safetensors.torch.save_file(gradients, arguments.gradients)
    return keep(FIXTURE, made, arguments.check)


if __name__ == "__main__":
    sys.exit(main())
