# SPDX-License-Identifier: Apache-2.0
"""Makes tests/train/fixtures/average.json: what timm's ModelEmaV3 makes of weights that move by a formula for 50 updates, which
train.Average follows too. Each tensor's every 7th number is stored.

    make_average_fixture.py            writes the fixture (timm 1.0.31, torch 2.11)
    make_average_fixture.py --check    makes it again and compares; exit code 1 where they differ
"""
import argparse
import json
import pathlib
import sys

import timm
import torch
from timm.utils import ModelEmaV3

from make_optimizer_fixture import EVERY, PARAMETERS, STEPS, tensor

FIXTURE = pathlib.Path(__file__).parent / "fixtures" / "average.json"
CASES = [(0.9998, True), (0.9998, False), (0.9, True)]  # decay, warmup: 1 - t^(-2/3) passes 0.9 within the 50


def follow(decay, warmup):
    start = {name: tensor(name, shape, 0.5) for name, (shape, _, _) in PARAMETERS.items()}
    model = torch.nn.ParameterDict({name.replace(".", "/"): torch.nn.Parameter(value.clone()) for name, value in start.items()})
    ema = ModelEmaV3(model, decay=decay, use_warmup=warmup)
    for step in range(1, STEPS + 1):
        with torch.no_grad():
            for name, value in start.items():
                model[name.replace(".", "/")].copy_(value + tensor(f"{name}/{step}", PARAMETERS[name][0], 0.125) * (0.1 * step))
        # timm counts updates where it warms up; told of the first step otherwise, it would take the weights as they are.
        ema.update(model, step=step if warmup else None)
    return {name: [float(f"{x:.9g}") for x in ema.module[name.replace(".", "/")].flatten()[::EVERY].tolist()] for name in start}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    torch.set_num_threads(1)
    made = {"versions": {"timm": timm.__version__, "torch": torch.__version__.split("+")[0]}, "every": EVERY,
            "averages": [{"decay": decay, "warmup": warmup, "values": follow(decay, warmup)} for decay, warmup in CASES]}
    if not check:
        FIXTURE.write_text(json.dumps(made, indent=0).replace(",\n", ", ").replace("[\n", "[").replace("\n]", "]") + "\n")
        return 0
    kept = json.loads(FIXTURE.read_text())
    worst = max(abs(a - b) for one, other in zip(made["averages"], kept["averages"], strict=True)
                for name, row in one["values"].items() for a, b in zip(row, other["values"][name], strict=True))
    print(f"largest difference {worst:.2g}")
    return int(worst > 1e-6)


if __name__ == "__main__":
    sys.exit(main())
