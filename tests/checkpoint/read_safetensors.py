# SPDX-License-Identifier: Apache-2.0
"""Reads OURS with Python's safetensors, checks every byte by formula, and writes the same tensors to THEIRS.

Parameters have lost "param/" in both.

Usage: read_safetensors.py OURS THEIRS. Exit code 77: safetensors or torch is not installed.
"""

import sys

try:
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

MASK = (1 << 64) - 1
EXPECTED = {  # name: (dtype, shape), as tests/checkpoint/sample_state.h has them
    "param/cls_token": (torch.float32, [1, 1, 5]),
    "param/blocks.0.qkv.weight": (torch.float32, [7, 13]),
    "param/scale": (torch.float32, []),
    "param/nothing": (torch.float32, [0, 4]),
    "param/half": (torch.bfloat16, [11]),
    "adamw.exp_avg/blocks.0.qkv.weight": (torch.float32, [7, 13]),
    "adamw.step": (torch.int64, [1]),
    "mask": (torch.bool, [3, 3]),
}


def sample_byte(name, position):
    value = 0
    for c in name.encode():
        value = (value * 33 + c) & MASK
    value = (value + position * 31) & MASK
    return (value ^ (value >> 8) ^ (value >> 16)) & 0xFF


def main(ours, theirs):
    tensors = {}
    with safe_open(ours, framework="pt") as file:
        metadata = file.metadata()
        for name in file.keys():
            tensors[name] = file.get_tensor(name)
    written = {name: name.removeprefix("param/") for name in EXPECTED}
    assert set(tensors) == set(written.values()), sorted(tensors)
    for name, (dtype, shape) in EXPECTED.items():
        tensor = tensors[written[name]]
        assert tensor.dtype == dtype and list(tensor.shape) == shape, (name, tensor.dtype, tensor.shape)
        found = tensor.contiguous().reshape(-1).view(torch.uint8).tolist() if tensor.numel() else []
        wanted = [sample_byte(name, i) for i in range(len(found))]
        assert found == wanted, f"{name}: bytes differ"
    save_file(tensors, theirs, metadata=metadata)


main(*sys.argv[1:])
