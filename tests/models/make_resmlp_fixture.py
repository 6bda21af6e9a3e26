# SPDX-License-Identifier: Apache-2.0
"""Makes tests/models/fixtures/resmlp.json: what timm computes for ResMLPs with weights and images of
make_parity_fixture.py's formula: logits, loss, gradients (of resmlp_24_224 logits alone), and the small one's features. Everything in float64.

    make_resmlp_fixture.py            writes the fixture
    make_resmlp_fixture.py --check    makes it again and compares; exit code 1 where they differ
"""
import functools
import pathlib
import sys

import timm
import torch
from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock

import make_parity_fixture as formula

FIXTURE = pathlib.Path(__file__).parent / "fixtures" / "resmlp.json"
formula.SAMPLES = 8


def small(**changes):
    """A config in Tessera's words and the timm model for it."""
    config = dict(image_size=48, patch_size=8, channels=3, width=96, depth=3, mlp_width=384, classes=50)
    config.update(changes)
    model = MlpMixer(
        num_classes=config["classes"], img_size=config["image_size"], in_chans=config["channels"],
        patch_size=config["patch_size"], num_blocks=config["depth"], embed_dim=config["width"],
        mlp_ratio=config["mlp_width"] / config["width"], block_layer=functools.partial(ResBlock, init_values=1e-5),
        norm_layer=Affine)
    return model, config


def logits_alone(name, batch):
    """Of a model whose gradients would fill the fixture."""
    case = formula.parity_case(timm.create_model(name), name, batch, {})
    return {key: case[key] for key in ("config", "batch", "logits_std", "logits")}


def features(model):
    """What its classifier reads, of a model that parity_case has filled."""
    with torch.no_grad():
        x = formula.images("images", 2, model)
        return formula.digits(model.forward_head(model.forward_features(x), pre_logits=True).reshape(-1).tolist())


def make():
    cases = {"resmlp_12_224": (timm.create_model("resmlp_12_224"), "resmlp_12_224", 2),
             "small": (*small(), 4), "gray": (*small(channels=1, patch_size=12, mlp_width=96), 4)}
    return {"timm": timm.__version__,
            "cases": {name: formula.parity_case(*case, {}) for name, case in cases.items()},
            "features": {"small": features(cases["small"][0])},
            "logits": [logits_alone("resmlp_24_224", 2)]}


def main():
    made = make()
    print("stds of logits", [one["logits_std"] for one in [*made["cases"].values(), *made["logits"]]])
    return formula.keep(FIXTURE, made, "--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
