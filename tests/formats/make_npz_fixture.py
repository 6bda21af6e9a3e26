# SPDX-License-Identifier: Apache-2.0
"""Makes fixtures/values.npz and packed.npz (formats.Npz reads them) and the corpus of fuzz_npz. Python 3 with NumPy."""
import io
import pathlib

import numpy as np

FOLDER = pathlib.Path(__file__).parent / "fixtures"
CORPUS = pathlib.Path(__file__).parents[2] / "fuzz" / "corpus" / "npz"


def arrays():
    count = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    return {
        "whole": count,
        "folder/turned": np.asfortranarray(count),
        "half": np.array([1.0, -0.5, 65504.0], np.float16),
        # JAX's bfloat16: two raw bytes to NumPy
        "brain": np.array([0x3F80, 0xBF00], "<u2").view("V2"),
        "double": np.array(3.25),
        "long": np.array([-1, 2 ** 40], np.int64),
        "none": np.zeros((0, 5), np.float32),
    }


def main():
    np.savez(FOLDER / "values.npz", **arrays())
    np.savez_compressed(FOLDER / "packed.npz", **arrays())
    CORPUS.mkdir(parents=True, exist_ok=True)
    for name in ("values", "packed"):
        (CORPUS / name).write_bytes((FOLDER / f"{name}.npz").read_bytes())
    objects = io.BytesIO()
    np.savez(objects, code=np.array([{"a": 1}], dtype=object))
    (CORPUS / "objects").write_bytes(objects.getvalue())


main()
