# SPDX-License-Identifier: Apache-2.0
"""Writes ImageNet-like JPEGs for the loader's benchmarks: edges about 500 x 375, mean size 100 to 120 KiB.

    python bench/make_images.py PHOTOS OUT [COUNT]

PHOTOS: a folder of real photos, of any size (all *.jpg below it), or `none`: then noise whose amplitude falls with
frequency as a photo's does (1 / f) takes their place. An enlarged small photo is smooth and compresses
far too well, which flatters every decoder; so each gets back what enlarging took away: grain of the strength of a
camera's, stronger where the photo has texture, and the fine detail of a second photo at its own scale. Files go to
OUT/train/<class>/, as ImageNet's, in 10 classes. The same files each time (seeded by their number); the mean size is
printed and belongs beside every figure. Needs numpy and pillow.
"""
import io
import multiprocessing
import pathlib
import sys

import numpy
from PIL import Image, ImageFilter

SHAPES = [(500, 375)] * 6 + [(375, 500)] * 2 + [(500, 333), (500, 400), (480, 360), (512, 384)]


def made_up_photos(count, size=(400, 300)):
    """Noise with the spectrum of photos: 1 / f in amplitude (Field, J. Opt. Soc. Am. A 4, 1987), colours mostly alike."""
    y, x = numpy.meshgrid(numpy.fft.fftfreq(size[1]), numpy.fft.fftfreq(size[0]), indexing="ij")
    falling = 1 / numpy.maximum(numpy.hypot(x, y), 1 / max(size))

    def plane(random):
        values = numpy.fft.ifft2(falling * numpy.fft.fft2(random.normal(size=(size[1], size[0])))).real
        return values / values.std()

    for number in range(count):
        random = numpy.random.default_rng(10_000 + number)
        gray = plane(random)
        colours = numpy.stack([128 + 42 * gray + 9 * plane(random) for _ in range(3)], axis=2)
        yield Image.fromarray(colours.clip(0, 255).astype("uint8"))


def opened(image):
    return image if isinstance(image, Image.Image) else Image.open(image)


def photo(image, size):
    image = opened(image).convert("RGB")
    scale = max(size[0] / image.width, size[1] / image.height)
    big = image.resize((round(image.width * scale + 0.5), round(image.height * scale + 0.5)), Image.Resampling.LANCZOS)
    return numpy.asarray(big.crop((0, 0, *size)), dtype=numpy.float32)


def detail(image, size):
    """What a blur removes from a photo at its own scale, tiled: texture as a lens delivers it."""
    image = opened(image).convert("L")
    fine = numpy.asarray(image, numpy.float32) - numpy.asarray(image.filter(ImageFilter.GaussianBlur(1.5)), numpy.float32)
    times = (size[1] // fine.shape[0] + 1, size[0] // fine.shape[1] + 1)
    mirrored = numpy.concatenate([numpy.concatenate([fine, fine[:, ::-1]], 1), numpy.concatenate([fine[::-1], fine[::-1, ::-1]], 1)])
    return numpy.tile(mirrored, times)[:size[1], :size[0], None]


def encode(photos, number, fine):
    """`fine`: how much fine detail is added; made-up photos have more of their own than enlarged ones."""
    random = numpy.random.default_rng(number)
    size = SHAPES[number % len(SHAPES)]
    base = photo(photos[number % len(photos)], size)
    texture = detail(photos[(number * 7 + 3) % len(photos)], size)
    strength = Image.fromarray(numpy.abs(texture[:, :, 0]).clip(0, 255).astype("uint8"))
    busy = numpy.asarray(strength.filter(ImageFilter.GaussianBlur(8)), numpy.float32)[:, :, None]
    luma = random.normal(0, 1, (size[1], size[0], 1)) * (8.4 + busy * 0.9)
    chroma = random.normal(0, 1.5, (size[1], size[0], 3))
    pixels = (base + fine * (1.3 * texture + luma + chroma)).clip(0, 255).astype("uint8")
    out = io.BytesIO()
    subsampling = 0 if number % 10 == 9 else 2  # 4:2:0 mostly, as ImageNet's
    Image.fromarray(pixels).save(out, "JPEG", quality=int(random.integers(91, 96)), subsampling=subsampling)
    return out.getvalue()


def share(photos, fine):
    """In each process of the pool: what all images are made of."""
    global SHARED
    SHARED = photos, fine


def encode_shared(number):
    photos, fine = SHARED
    return encode(photos, number, fine)


def write(folder, number, data):
    path = folder / "train" / f"class{number % 10}" / f"{number:05}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def main():
    if sys.argv[1] == "none":
        photos = list(made_up_photos(12))
    else:
        photos = sorted(pathlib.Path(sys.argv[1]).rglob("*.jpg"))
    folder, count = pathlib.Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1000
    total = 0
    fine = 0.25 if sys.argv[1] == "none" else 1
    with multiprocessing.Pool(initializer=share, initargs=(photos, fine)) as pool:
        images = pool.imap(encode_shared, range(count), chunksize=8)
        for number, data in enumerate(images):
            total += len(data)
            write(folder, number, data)
    print(f"{count} images, mean {total / count / 1024:.1f} KiB, in {folder}")


if __name__ == "__main__":
    main()
