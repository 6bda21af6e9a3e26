# SPDX-License-Identifier: Apache-2.0
"""Small files the tests feed the program: idx, PNG and JPEG, made without any library."""
import base64
import gzip
import os
import pathlib
import struct
import zlib

# 8 x 8 grey pixels, from dark to light.
JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABALDA4MChAODQ4SERATGCgaGBYWGDEjJR0oOjM9PDkzODdASFxOQERXRTc4UG1RV19iZ2hnPk1xeXBk"
    "eFxlZ2P/wAALCAAIAAgBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAAf/EABgQAAIDAAAAAAAAAAAAAAAAAAADBmOh/9oACAEBAAA/ABEOrw//2Q==")


def png(side, shade):
    """A grey square PNG whose pixel (x, y) is shade(x, y)."""
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    pixels = b"".join(b"\0" + bytes(shade(x, y) for x in range(side)) for y in range(side))
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b""))


def make_image_folder(folder, images=40):
    """train/ and val/, two classes, `images` files a class: dark ones and light ones, the first of each a JPEG."""
    folder = pathlib.Path(folder)
    for split in ("train", "val"):
        for label, name in enumerate(("dark", "light")):
            place = folder / split / name
            place.mkdir(parents=True)
            (place / "000.jpg").write_bytes(JPEG)
            for index in range(1, images):
                (place / f"{index:03d}.png").write_bytes(png(16, lambda x, y: 120 * label + (x * y + index) % 100))
    return folder


def shared_data(name):
    """Real data beside the source tree or in $TESSERA_SHARED_DATA; None where there is none of that name."""
    root = os.environ.get("TESSERA_SHARED_DATA") or pathlib.Path(__file__).resolve().parents[3] / "shared/data"
    path = pathlib.Path(root) / name
    return path if path.exists() else None


def make_cifar_folder(folder, images=20):
    """CIFAR-10's binary version: six batches of 1 + 3072 bytes an image, and the names of the classes."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    (folder / "batches.meta.txt").write_text("".join(f"class{label}\n" for label in range(10)))
    for batch in [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]:
        (folder / f"{batch}.bin").write_bytes(b"".join(
            bytes([index % 10]) + bytes((index * 37 + pixel // (1 + index % 7)) % 256 for pixel in range(3072))
            for index in range(images)))
    return folder


def make_idx_folder(folder, images=64, side=8):
    """The four files of the MNIST family, gzipped."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    for split in ("train", "t10k"):
        pixels = bytes((17 * index + pixel) % 256 for index in range(images) for pixel in range(side * side))
        images_file = struct.pack(">IIII", 0x803, images, side, side) + pixels
        labels_file = struct.pack(">II", 0x801, images) + bytes(index % 10 for index in range(images))
        (folder / f"{split}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images_file))
        (folder / f"{split}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels_file))
    return folder
