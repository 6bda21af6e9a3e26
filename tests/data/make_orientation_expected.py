# SPDX-License-Identifier: Apache-2.0
"""Writes orientation_expected.json: what Pillow's ImageOps.exif_transpose makes of each orientation.

Run with a Python that has pillow; orientation_test.cpp reads the result.
"""
import json
import pathlib

from PIL import Image, ImageOps

WIDTH, HEIGHT = 5, 3


def main():
    cases = []
    for orientation in range(1, 9):
        image = Image.frombytes("RGB", (WIDTH, HEIGHT), bytes(range(3 * WIDTH * HEIGHT)))
        image.getexif()[0x0112] = orientation
        upright = ImageOps.exif_transpose(image)
        cases.append(dict(orientation=orientation, width=upright.width, height=upright.height,
                          pixels=list(upright.tobytes())))
    target = pathlib.Path(__file__).with_name("orientation_expected.json")
    target.write_text("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")


main()
