# SPDX-License-Identifier: Apache-2.0
"""Images/s of torchvision's loader: the peer of `tessera data bench`.

    loader.py FOLDER WORKERS [pil|tensor]

ImageFolder, RandomResizedCrop(224), flip, normalisation, batches of 64; two epochs, of which the second has warm workers.
pil decodes by Pillow, tensor by torchvision's own decoder.
"""
import sys
import time

import torch
import torchvision.transforms.v2 as transforms
from torchvision.datasets import ImageFolder
from torchvision.io import decode_image, read_file

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def main():
    folder, workers, decoder = sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "pil"
    torch.set_num_threads(1)
    steps = [transforms.RandomResizedCrop(224, antialias=True), transforms.RandomHorizontalFlip()]
    if decoder == "pil":
        steps.append(transforms.ToImage())
    steps += [transforms.ToDtype(torch.float32, scale=True), transforms.Normalize(MEAN, STD)]
    own_decoder = {} if decoder == "pil" else {"loader": lambda path: decode_image(read_file(path), mode="RGB")}
    data = ImageFolder(folder, transforms.Compose(steps), **own_decoder)
    loader = torch.utils.data.DataLoader(data, 64, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    for _ in range(2):
        start, images = time.perf_counter(), 0
        for _, labels in loader:
            images += len(labels)
        print(f"torchvision {decoder} workers {workers}: {images / (time.perf_counter() - start):.0f} img/s over {images} images")


main()
