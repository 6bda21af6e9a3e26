# SPDX-License-Identifier: Apache-2.0
"""Makes tests/weights/positions_expected.json: position embeddings resampled by timm and by SciPy. Needs timm, SciPy."""
import json
import pathlib

import numpy as np
import scipy.ndimage
import torch
from timm.layers import resample_abs_pos_embed

SIZES = [(3, 5), (5, 3), (7, 7), (14, 24), (16, 7), (1, 4), (4, 1), (2, 9)]
WIDTH = 3


def rows(side):
    """Knuth's multiplicative hash of the element's number, in [-1, 1): the C++ tests make the same."""
    words = (np.arange(side * side * WIDTH, dtype=np.uint64) * np.uint64(2654435761)) % np.uint64(1 << 32)
    return (words.astype(np.float64) / 2.0 ** 31 - 1).astype(np.float32).reshape(side * side, WIDTH)


def main():
    cases = []
    for before, after in SIZES:
        grid = rows(before)
        bicubic = resample_abs_pos_embed(torch.from_numpy(grid)[None], [after, after], [before, before], num_prefix_tokens=0)
        zoom = (after / before, after / before, 1)
        linear = scipy.ndimage.zoom(grid.reshape(before, before, WIDTH).astype(np.float64), zoom, order=1)
        cases.append({"from": before, "to": after, "bicubic": bicubic.flatten().tolist(),
                      "linear": np.round(linear.flatten(), 9).tolist()})
    path = pathlib.Path(__file__).parent / "positions_expected.json"
    path.write_text(json.dumps({"width": WIDTH, "cases": cases}) + "\n")


main()
