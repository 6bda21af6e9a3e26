# SPDX-License-Identifier: Apache-2.0
"""Makes tests/models/fixtures/features.json: what timm's forward_intermediates, forward_features and
forward_head(pre_logits=True) give for the models, weights and images of make_parity_fixture.py.

    make_features_fixture.py            writes the fixture
    make_features_fixture.py --check    makes it again and compares; exit code 1 where they differ
"""
import pathlib
import sys

import torch
from make_parity_fixture import SAMPLES, digits, fill, images, keep, small, words

FIXTURE = pathlib.Path(__file__).parent / "fixtures" / "features.json"
CASES = {
    "gap_no_class_token": dict(pool="avg", class_token=False),
    "registers_layer_scale": dict(registers=4, layer_scale=0.1),
    "attention_pool": dict(pool="map", class_token=False),
    "distilled": dict(distillation_token=True),
}


def describe(name, value):
    flat = value.reshape(-1)
    index = torch.from_numpy((words(name + "/sample", SAMPLES) % flat.numel()).astype("int64"))
    return {"shape": list(value.shape), "norm": digits([flat.norm().item()])[0], "sample": digits(flat[index].tolist())}


def case(changes):
    model, config = small(**changes)
    model = model.double().eval()
    fill(model)
    with torch.no_grad():
        x = images("images", 3, model)
        tokens, blocks = model.forward_intermediates(x, indices=[0, 1], output_fmt="NLC", return_prefix_tokens=True)
        if config["class_token"] or config["registers"]:  # (patches, prefix) of each block
            blocks = [torch.cat([prefix, patches], 1) for patches, prefix in blocks]
        features = model.forward_head(model.forward_features(x), pre_logits=True)
    values = {"blocks.0": blocks[0], "blocks.1": blocks[1], "tokens": tokens, "features": features}
    return {"config": config, "values": {name: describe(name, value) for name, value in values.items()}}


def main():
    made = {name: case(changes) for name, changes in CASES.items()}
    return keep(FIXTURE, made, "--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
