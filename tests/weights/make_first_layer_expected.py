# SPDX-License-Identifier: Apache-2.0
"""Makes tests/weights/first_layer_expected.json: what timm makes of a patch embedding for images with other channels
(adapt_input_conv) and for patches of another size (resample_patch_embed). Needs timm."""
import json
import pathlib

import numpy as np
import torch
from timm.layers import resample_patch_embed
from timm.models import adapt_input_conv

CHANNELS = [(3, 1), (3, 2), (3, 4), (3, 6), (3, 7), (1, 3), (4, 2)]
PATCHES = [(16, 14), (14, 16), (16, 8), (8, 16), (7, 4), (4, 7), (5, 1), (16, 32)]


def kernels(*shape):
    """A quarter of Knuth's multiplicative hash of the element's number, in [-1, 1): the C++ tests make the same."""
    words = (np.arange(np.prod(shape), dtype=np.uint64) * np.uint64(2654435761)) % np.uint64(1 << 32)
    return torch.from_numpy(((words.astype(np.float64) / 2.0 ** 31 - 1) / 4).astype(np.float32).reshape(shape))


def main():
    channels = [{"from": before, "to": after,
                 "kernels": adapt_input_conv(after, kernels(2, before, 3, 3), base_chans=before).flatten().tolist()}
                for before, after in CHANNELS]
    patches = [{"from": before, "to": after,
                "kernels": resample_patch_embed(kernels(1, 2, before, before), [after, after]).flatten().tolist()}
               for before, after in PATCHES]
    path = pathlib.Path(__file__).parent / "first_layer_expected.json"
    text = json.dumps({"channels": channels, "patches": patches})
    path.write_text(text.replace('{"from"', '\n{"from"') + "\n")


main()
