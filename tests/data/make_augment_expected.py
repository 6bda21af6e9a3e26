# SPDX-License-Identifier: Apache-2.0
"""Writes augment_expected.json: what Pillow, torchvision and timm make of images given by a formula.

Run with a Python that has pillow, torchvision and timm; augment_ops_test.cpp and mix_test.cpp read the result. The
operations under TensorFlow's arithmetic are written out in numpy below, since big_vision runs on a TensorFlow of its time.
"""
import json
import math
import pathlib
import random
import zlib
from unittest import mock

import numpy
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from timm.data import auto_augment, mixup, random_erasing
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as tv
from torchvision.transforms import autoaugment as tv_auto

FILL = (124, 116, 104)
LARGE = 100  # pixels: of wider pictures the file keeps the CRC-32 alone
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def picture(width, height, channels):
    """Texture with a plain area and a smooth slope, so that every branch is met."""
    y, x, c = numpy.meshgrid(range(height), range(width), range(channels), indexing="ij")
    pixels = (x * 7 + y * 13 + c * 29 + x * y * 3 + (x // 5) * (y // 3) * 17) % 256
    pixels = numpy.where(y >= height - 4, 60 + 5 * x + 20 * c, pixels)
    pixels = numpy.where((x < 5) & (y < 5), 37 + 90 * c, pixels).clip(0, 255).astype("uint8")
    return Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)


def case(op, image, out, amount=0.0, filter_name="bilinear", dialect="pillow", **more):
    assert out.size == image.size and out.mode == image.mode
    pixels = numpy.asarray(out).tobytes()
    result = dict(crc32=zlib.crc32(pixels)) if image.width > LARGE else dict(pixels=pixels.hex())
    return dict(op=op, width=image.width, height=image.height, channels=len(image.getbands()), amount=amount,
                filter=filter_name, dialect=dialect, **result, **more)


def pillow_cases():
    for size, channels in [((15, 12), 3), ((11, 14), 1), ((224, 160), 3)]:
        image = picture(*size, channels)
        fill = FILL if channels == 3 else FILL[0]
        yield case("autocontrast", image, auto_augment.auto_contrast(image))
        yield case("equalize", image, auto_augment.equalize(image))
        yield case("invert", image, auto_augment.invert(image))
        for bits in (1, 4, 7, 8):
            yield case("posterize", image, auto_augment.posterize(image, bits), bits)
        for threshold in (0, 26, 128, 204.0, 256):
            yield case("solarize", image, auto_augment.solarize(image, threshold), threshold)
        for add in (33, 110):
            yield case("solarize_add", image, auto_augment.solarize_add(image, add), add)
        for factor in (0.0, 0.1, 0.55, 1.0, 1.72, 1.9):
            for name in ("brightness", "contrast", "color", "sharpness"):
                yield case(name, image, getattr(auto_augment, name)(image, factor), factor)
        for radius in (0.1, 0.7, 1.3, 2.0, 9.0):
            yield case("blur", image, image.filter(ImageFilter.GaussianBlur(radius)), radius)
        for name, resample in FILTERS.items():
            how = dict(resample=resample, fillcolor=fill)
            for level in (0.27, -0.1):
                yield case("shear_x", image, auto_augment.shear_x(image, level, **how), level, name)
                yield case("shear_y", image, auto_augment.shear_y(image, level, **how), level, name)
            for share in (0.405, -0.1):
                yield case("translate_x", image, auto_augment.translate_x_rel(image, share, **how), share * image.width, name)
                yield case("translate_y", image, auto_augment.translate_y_rel(image, share, **how), share * image.height, name)
            for degrees in (27.0, -3.3, 0.0):
                yield case("rotate", image, auto_augment.rotate(image, degrees, **how), degrees, name)
    for image in (picture(15, 12, 3), picture(224, 160, 3)):
        for turns in (-0.5, -0.1, 0.02, 0.33, 0.5):
            yield case("hue", image, tv.adjust_hue(image, turns), turns)
    square = picture(12, 12, 3)
    yield case("rotate", square, square.rotate(90, resample=FILTERS["bilinear"], fillcolor=FILL), 90.0)
    for flat in (Image.new("RGB", (9, 5), (7, 70, 200)), picture(1, 1, 3), picture(2, 3, 3)):
        pixels = numpy.asarray(flat).tobytes().hex()
        yield case("autocontrast", flat, ImageOps.autocontrast(flat), source=pixels)
        yield case("equalize", flat, ImageOps.equalize(flat), source=pixels)
        yield case("blur", flat, flat.filter(ImageFilter.GaussianBlur(1.5)), 1.5, source=pixels)
        yield case("sharpness", flat, ImageEnhance.Sharpness(flat).enhance(1.5), 1.5, source=pixels)
        yield case("rotate", flat, flat.rotate(20, FILTERS["bicubic"], fillcolor=FILL), 20.0, "bicubic", source=pixels)


def torchvision_cases():
    """What torchvision's wide policies call an operation; a translation has the other sign there."""
    image = picture(15, 12, 3)
    for name, mode in (("bilinear", InterpolationMode.BILINEAR), ("bicubic", InterpolationMode.BICUBIC)):
        for op, torchvision_name, amount, ours in [
                ("shear_x", "ShearX", 0.99, 0.99), ("shear_y", "ShearY", -0.66, -0.66), ("translate_x", "TranslateX", 5.3, -5.0),
                ("translate_y", "TranslateY", -3.0, 3.0), ("rotate", "Rotate", 121.5, 121.5)]:
            out = tv_auto._apply_op(image, torchvision_name, amount, interpolation=mode, fill=list(FILL))
            yield case(op, image, out, ours, name)
    for op, torchvision_name, amount, ours in [
            ("brightness", "Brightness", 0.33, 1.33), ("color", "Color", -0.99, 1 - 0.99), ("contrast", "Contrast", 0.66, 1.66),
            ("sharpness", "Sharpness", -0.5, 0.5), ("posterize", "Posterize", 3.0, 3), ("solarize", "Solarize", 76.5, 76.5),
            ("autocontrast", "AutoContrast", 0.0, 0), ("equalize", "Equalize", 0.0, 0)]:
        out = tv_auto._apply_op(image, torchvision_name, amount, interpolation=InterpolationMode.BILINEAR, fill=None)
        yield case(op, image, out, ours)


def tensorflow_blend(plain, pixels, factor):
    mixed = plain.astype("float32") + numpy.float32(factor) * (pixels.astype("float32") - plain.astype("float32"))
    return mixed.clip(0, 255).astype("uint8")


def tensorflow_warp(pixels, m, fill=128):
    """ImageProjectiveTransform, nearest: output (x, y) reads round(m0 x + m1 y + m2), round(m3 x + m4 y + m5)."""
    height, width, _ = pixels.shape
    out = numpy.full_like(pixels, fill)
    away = lambda v: int(math.floor(abs(v) + 0.5) * (1 if v >= 0 else -1))
    for y in range(height):
        for x in range(width):
            u, v = away(m[0] * x + m[1] * y + m[2]), away(m[3] * x + m[4] * y + m[5])
            if 0 <= u < width and 0 <= v < height:
                out[y, x] = pixels[v, u]
    return out


def tensorflow_cases(image):
    pixels = numpy.asarray(image)
    height, width, _ = pixels.shape

    def made(op, array, amount, **more):
        return case(op, image, Image.fromarray(array), amount, dialect="tensorflow", **more)

    share = pixels.astype("float32") * numpy.float32(1 / 255)
    weights = numpy.array([0.2989, 0.5870, 0.1140], "float32")
    luma = ((share * weights).sum(-1, dtype="float32") * numpy.float32(255.5)).astype("uint8")
    padded = pixels.astype("int64")
    inner = sum(padded[1 + dy:height - 1 + dy, 1 + dx:width - 1 + dx] * (5 if dx == dy == 0 else 1)
                for dy in (-1, 0, 1) for dx in (-1, 0, 1))
    smooth = pixels.copy()
    smooth[1:-1, 1:-1] = inner // 13
    gray = numpy.full_like(pixels, min(255, width * height // 256))
    yield made("color", tensorflow_blend(luma[:, :, None].repeat(3, 2), pixels, 1.9), 1.9)
    yield made("contrast", tensorflow_blend(gray, pixels, 1.9), 1.9)
    yield made("sharpness", tensorflow_blend(smooth, pixels, 1.9), 1.9)
    for level in (0.45, -0.45):
        yield made("shear_x", tensorflow_warp(pixels, [1, level, 0, 0, 1, 0]), level)
    yield made("shear_y", tensorflow_warp(pixels, [1, 0, 0, level, 1, 0]), level)
    yield made("translate_x", tensorflow_warp(pixels, [1, 0, -9, 0, 1, 0]), -9.0)
    yield made("translate_y", tensorflow_warp(pixels, [1, 0, 0, 0, 1, 12]), 12.0)
    angle = math.radians(-45.0)
    cosine, sine = math.cos(angle), math.sin(angle)
    x = ((width - 1) - (cosine * (width - 1) - sine * (height - 1))) / 2
    y = ((height - 1) - (sine * (width - 1) + cosine * (height - 1))) / 2
    yield made("rotate", tensorflow_warp(pixels, [cosine, -sine, x, sine, cosine, y]), -45.0)
    cut = pixels.copy()
    cut[0:3 + 7, 18 - 7:18 + 7] = 128
    yield made("cutout", cut, 7.0, x=18, y=3)


def timm_boxes():
    """CutMix boxes and corrected lambdas, random-erasing sizes, with the draws given."""
    boxes = []
    for height, width, lam, cy, cx in [(224, 224, 0.37, 100, 30), (224, 224, 0.9, 223, 0), (6, 9, 0.5, 2, 8), (32, 32, 0.0, 5, 5),
                                       (7, 7, 0.999, 3, 3)]:
        with mock.patch.object(numpy.random, "randint", side_effect=[cy, cx]):
            (yl, yh, xl, xh), share = mixup.cutmix_bbox_and_lam((3, height, width), lam)
        boxes.append(dict(height=height, width=width, lam=lam, y=cy, x=cx, box=[int(v) for v in (xl, yl, xh - xl, yh - yl)],
                          share=float(share)))
    return boxes


def rounded(tensor):
    return [round(value, 6) for value in tensor.flatten().tolist()]


def timm_mixes():
    """The numbers and targets of timm's Mixup for given lambdas; partners are mirrored."""
    cases = []
    for mode, lams, cuts in [("elem", [0.3, 1.0, 0.62, 0.9], [False, False, True, True]), ("pair", [0.25, 0.7], [True, False])]:
        images = torch.arange(4 * 3 * 5 * 6, dtype=torch.float32).view(4, 3, 5, 6).mul(0.37).sin()
        labels = torch.tensor([3, 0, 2, 2])
        mixer = mixup.Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, mode=mode, label_smoothing=0.1, num_classes=5)
        centres = [(2, 3), (4, 1)]
        draws = [value for pair in centres for value in pair]
        before = images.clone()
        with mock.patch.object(mixer, "_params_per_elem", return_value=(numpy.float32(lams), numpy.array(cuts))), \
                mock.patch.object(numpy.random, "randint", side_effect=draws):
            mixed, targets = mixer(images, labels)
        cases.append(dict(mode=mode, lams=lams, cuts=cuts, centres=centres, labels=labels.tolist(),
                          before=rounded(before), mixed=rounded(mixed), targets=targets.tolist()))
    return cases


def timm_erasing():
    """Boxes of RandomErasing for given area and aspect draws."""
    cases = []
    for width, height, area, log_aspect in [(224, 224, 0.2, 0.4), (224, 224, 0.02, -1.2), (32, 48, 1 / 3, 1.1), (8, 8, 0.9, 0.0)]:
        eraser = random_erasing.RandomErasing(probability=1, mode="const", device="cpu")
        image = torch.ones(1, height, width)
        with mock.patch.object(random, "uniform", side_effect=[area, log_aspect] * 10), \
                mock.patch.object(random, "randint", side_effect=lambda low, high: low):
            eraser(image)
        erased = image[0] == 0
        cases.append(dict(width=width, height=height, area=area, aspect=math.exp(log_aspect),
                          box=[int(erased.any(0).sum()), int(erased.any(1).sum())]))
    return cases


def timm_policies():
    """AutoAugment's tables, RandAugment's sets with their weights, as [name, probability or weight, magnitude]."""
    policies = {name: [[[op.name, op.prob, op.magnitude] for op in ops] for ops in auto_augment.auto_augment_policy(name)]
                for name in ("original", "originalr", "v0", "v0r", "3a")}
    sets = {}
    for name in ("", "weights", "3a", "3aw"):
        for increasing in (False, True):
            chosen = auto_augment.rand_augment_choices(name, increasing=increasing)
            weights = chosen if isinstance(chosen, dict) else dict.fromkeys(chosen, 0)
            sets[f"{name}/{int(increasing)}"] = [[op, weight] for op, weight in weights.items()]
    return policies, sets


def timm_levels():
    """The amounts of each named operation at a magnitude, for both outcomes of the coin, as Operation has them."""
    levels = []
    for name, to_amount in auto_augment.LEVEL_TO_ARG.items():
        if to_amount is None or name in ("TranslateX", "TranslateY", "GaussianBlurRand"):
            continue
        for magnitude in (0, 1, 4.5, 5, 9, 9.37, 10):
            amounts = set()
            for coin in (0.0, 1.0):
                with mock.patch.object(random, "random", return_value=coin):
                    amount = float(to_amount(magnitude, {})[0])
                amount *= {"TranslateXRel": 200, "TranslateYRel": 100}.get(name, 1)
                amounts.add(1 - amount if name == "Desaturate" else amount)
            levels.append([name, magnitude, sorted(amounts)])
    return levels


def torchvision_spaces():
    """The distances from no change of each operation's bins; one bin for RandAugment."""
    wide = tv_auto.TrivialAugmentWide()._augmentation_space(31)
    rand = tv_auto.RandAugment()._augmentation_space(31, (100, 200))
    def bins(values):
        return [round(value, 6) for value in values.tolist()] if values.ndim else [0.0]

    return {"ta_wide": {name: [bins(values), signed] for name, (values, signed) in wide.items()},
            "tv-randaug:2,9": {name: [[bins(values)[9] if values.ndim else 0.0], signed]
                               for name, (values, signed) in rand.items()}}


def main():
    cases = [*pillow_cases(), *torchvision_cases(), *tensorflow_cases(picture(21, 16, 3)),
             *tensorflow_cases(picture(224, 160, 3))]
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    rest = {"cutmix": timm_boxes(), "mix": timm_mixes(), "erasing": timm_erasing()}
    rest["policies"], rest["sets"] = timm_policies()
    rest |= {"levels": timm_levels(), "spaces": torchvision_spaces()}
    rest = ",\n".join(f'"{key}":{json.dumps(value, separators=(",", ":"))}' for key, value in rest.items())
    target = pathlib.Path(__file__).with_name("augment_expected.json")
    target.write_text('{"operations":[\n' + lines + "\n],\n" + rest + "}\n")


main()
