# SPDX-License-Identifier: Apache-2.0
"""What timm's operations cost with Pillow for one image of 224 x 224: the other side of augment_bench.cpp.

Run with a Python that has timm, torchvision and pillow (./dev peers makes one). Prints milliseconds of CPU time.
RandAugment without magnitude noise: where that posterizes to 0 bits, Pillow 13 throws.
"""
import time

import numpy
from PIL import Image, ImageFilter
from timm.data import auto_augment
from torchvision.transforms import functional

FILL = (124, 116, 104)


def photo():
    y, x, c = numpy.meshgrid(range(224), range(224), range(3), indexing="ij")
    noise = numpy.random.default_rng(1).integers(0, 32, (224, 224, 3))
    return Image.fromarray((x // 2 + y // 3 + c * 20 + noise).astype("uint8"))


def main():
    image = photo()
    bilinear = dict(resample=Image.Resampling.BILINEAR, fillcolor=FILL)
    bicubic = dict(resample=Image.Resampling.BICUBIC, fillcolor=FILL)
    options = dict(translate_const=100, img_mean=FILL, interpolation=Image.Resampling.BICUBIC)
    rand = auto_augment.rand_augment_transform("rand-m9-inc1", dict(options))
    original = auto_augment.auto_augment_transform("original", dict(options))
    three = auto_augment.auto_augment_transform("3a", dict(options))
    cases = {
        "auto_contrast": lambda: auto_augment.auto_contrast(image),
        "equalize": lambda: auto_augment.equalize(image),
        "solarize": lambda: auto_augment.solarize(image, 128),
        "brightness": lambda: auto_augment.brightness(image, 1.8),
        "contrast": lambda: auto_augment.contrast(image, 1.8),
        "color": lambda: auto_augment.color(image, 1.8),
        "sharpness": lambda: auto_augment.sharpness(image, 1.8),
        "hue": lambda: functional.adjust_hue(image, 0.1),
        "blur": lambda: image.filter(ImageFilter.GaussianBlur(1.5)),
        "rotate_bilinear": lambda: auto_augment.rotate(image, 27, **bilinear),
        "rotate_bicubic": lambda: auto_augment.rotate(image, 27, **bicubic),
        "shear_bicubic": lambda: auto_augment.shear_x(image, 0.27, **bicubic),
        "translate_bicubic": lambda: auto_augment.translate_x_abs(image, 90, **bicubic),
        "rand-m9-inc1": lambda: rand(image),
        "original": lambda: original(image),
        "3a": lambda: three(image),
    }
    for name, run in cases.items():
        run()
        rounds = 400 if name in ("rand-m9-inc1", "original", "3a") else 60
        start = time.thread_time()
        for _ in range(rounds):
            run()
        print(f"{name:24} {(time.thread_time() - start) / rounds * 1e3:.3f} ms")


main()
