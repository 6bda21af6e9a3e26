# SPDX-License-Identifier: Apache-2.0
"""Makes fixtures/values.pth and older.pth, which torch_file_test.cpp reads. Needs torch: .venv-peers/bin/python."""
import argparse
import collections
import pathlib

import torch

FOLDER = pathlib.Path(__file__).parent / "fixtures"


def main():
    FOLDER.mkdir(exist_ok=True)
    grid = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    layer = torch.nn.Linear(2, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.5, -2.5]]))
    values = {
        "model": collections.OrderedDict(
            whole=grid,
            turned=grid.t(),
            rows=grid[1:3],
            columns=grid[:, 1::2],
            spread=torch.tensor([7.0]).expand(2, 3),
            half=torch.tensor([1.0, -0.5], dtype=torch.bfloat16),
            counts=torch.tensor([[-1, 2 ** 40]]),
            mask=torch.tensor([True, False, True]),
            scalar=torch.tensor(3.25, dtype=torch.float64),
            nothing=torch.zeros(0, 5),
        ),
        "parameter": layer.weight,
        "size": torch.Size([2, 3]),
        "dtype": torch.float16,
        "args": argparse.Namespace(lr=0.5, name="vit", sizes=[224, 14]),
        "milestones": collections.Counter([30, 60]),
        "epoch": 12,
        "large": -2 ** 62,
        "real": 1e-3,
        "none": None,
        "flags": (True, False),
    }
    torch.save(values, FOLDER / "values.pth")
    torch.save({"epoch": 1}, FOLDER / "older.pth", _use_new_zipfile_serialization=False)


main()
