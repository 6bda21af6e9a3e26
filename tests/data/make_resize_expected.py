# SPDX-License-Identifier: Apache-2.0
"""Writes resize_expected.json: what Pillow and torchvision make of images given by a formula.

Horizontal pass first, as in every Pillow; from 13 on images much taller than wide go the other way round, which
changes a level here and there, so there is none among the cases.
Run with a Python that has pillow and torchvision; transform_test.cpp reads the result.
"""
import json
import pathlib

import numpy
from PIL import Image
from torchvision import transforms


def picture(width, height, channels):
    y, x, c = numpy.meshgrid(range(height), range(width), range(channels), indexing="ij")
    pixels = ((x * 7 + y * 13 + c * 29 + x * y * 3 + (x // 5) * (y // 3) * 17) % 256).astype("uint8")
    return Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)


def case(kind, image, channels, filter_name, out, **more):
    return dict(kind=kind, width=image.width, height=image.height, channels=channels, filter=filter_name,
                out_width=out.width, out_height=out.height, pixels=numpy.asarray(out).flatten().tolist(), **more)


def main():
    filters = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    cases = []
    for name, resample in filters.items():
        for width, height, channels, out in [(37, 23, 3, (8, 6)), (5, 4, 3, (9, 7)), (40, 31, 1, (7, 9)),
                                             (1, 50, 3, (4, 4)), (64, 3, 1, (5, 8))]:
            image = picture(width, height, channels)
            cases.append(case("resize", image, channels, name, image.resize(out, resample)))
        image = picture(45, 38, 3)
        box = (11, 7, 11 + 21, 7 + 18)
        cases.append(case("crop", image, 3, name, image.crop(box).resize((8, 8), resample),
                          box=[11, 7, 21, 18]))
        for width, height in [(61, 47), (47, 61), (90, 20), (9, 12)]:
            image = picture(width, height, 3)
            pipeline = transforms.Compose([transforms.Resize(int(14 / 0.875), interpolation=resample),
                                           transforms.CenterCrop(14)])
            cases.append(case("eval", image, 3, name, pipeline(image)))
    target = pathlib.Path(__file__).with_name("resize_expected.json")
    target.write_text("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")


main()
