#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Top-1 of a logistic regression on 32 x 32 pixels: what a ViT that learns the same photos must leave behind.

usage: bench/logistic_regression.py FOLDER      (FOLDER/{train,validation,test}/CLASS/*.jpg; needs torch and Pillow: ./dev peers)

Pixels are standardised by the training images' mean and deviation. The weight of the L2 penalty is the one of ten that is
best on `validation`; every fit is L-BFGS on all images until it no longer improves, so there is no seed.
"""
import pathlib
import sys

import torch
from PIL import Image


def images_of(split):
    classes = sorted(p.name for p in split.iterdir() if p.is_dir())
    pixels, labels = [], []
    for label, name in enumerate(classes):
        for path in sorted((split / name).iterdir()):
            image = Image.open(path).convert("RGB").resize((32, 32), Image.Resampling.BILINEAR)
            pixels.append(torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8))
            labels.append(label)
    return torch.stack(pixels).double() / 255, torch.tensor(labels)


def fit(x, y, classes, penalty):
    weight = torch.zeros(x.shape[1], classes, dtype=x.dtype, requires_grad=True)
    bias = torch.zeros(classes, dtype=x.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=500, tolerance_grad=1e-6, tolerance_change=1e-9,
                                  line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(x @ weight + bias, y) + penalty * weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return weight.detach(), bias.detach()


def top1(x, y, model):
    return 100 * ((x @ model[0] + model[1]).argmax(1) == y).double().mean().item()


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    (x, y), (xv, yv), (xt, yt) = (images_of(folder / s) for s in ("train", "validation", "test"))
    mean, deviation = x.mean(0), x.std(0)
    x, xv, xt = ((a - mean) / deviation for a in (x, xv, xt))
    best = None
    for penalty in (10.0 ** (k / 2) for k in range(-8, 2)):
        model = fit(x, y, int(y.max()) + 1, penalty)
        found = top1(xv, yv, model), top1(xt, yt, model), penalty
        print(f"penalty {penalty:.1e}: train {top1(x, y, model):.2f} %, validation {found[0]:.2f} %", flush=True)
        best = max(best or found, found, key=lambda f: f[0])
    print(f"logistic regression: test {best[1]:.2f} % (penalty {best[2]:.1e}, validation {best[0]:.2f} %)")


main()
