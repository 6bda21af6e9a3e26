# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of fuzz/corpus/{gzip,idx,jpeg,png,region}. Run with a Python that has pillow."""
import gzip
import io
import pathlib
import struct

from PIL import Image

ROOT = pathlib.Path(__file__).parent.parent / "corpus"


def put(name, content):
    path = ROOT / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def packed(text, name=""):
    out = io.BytesIO()
    with gzip.GzipFile(name, "wb", mtime=0, fileobj=out) as file:
        file.write(text)
    return out.getvalue()


def encoded(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def main():
    plain = packed(b"a text that repeats, a text that repeats")
    put("gzip/plain.gz", plain)
    put("gzip/named.gz", packed(b"x" * 1000, "train-images-idx3-ubyte"))
    put("gzip/members.gz", plain + packed(b"two") + b"\0" * 16)
    put("gzip/damaged.gz", plain[:20] + b"\xff" + plain[21:])
    put("gzip/cut.gz", plain[:-5])

    put("idx/images", bytes([0, 0, 8, 3]) + struct.pack(">3I", 2, 2, 3) + bytes(range(12)))
    put("idx/labels", bytes([0, 0, 8, 1]) + struct.pack(">I", 4) + bytes([3, 1, 4, 1]))
    put("idx/overflow", bytes([0, 0, 8, 4]) + struct.pack(">4I", 1 << 31, 1 << 31, 4, 0xffffffff))
    put("idx/floats", bytes([0, 0, 13, 1]) + struct.pack(">I", 1) + bytes(4))

    picture = Image.frombytes("RGB", (19, 13), bytes((i * 37 + i // 7) % 256 for i in range(19 * 13 * 3)))
    gray, cmyk, palette = picture.convert("L"), picture.convert("CMYK"), picture.quantize(7)
    put("jpeg/rgb.jpg", encoded(picture, "JPEG"))
    put("jpeg/progressive.jpg", encoded(picture, "JPEG", progressive=True))
    put("jpeg/gray.jpg", encoded(gray, "JPEG"))
    put("jpeg/cmyk.jpg", encoded(cmyk, "JPEG"))
    put("jpeg/cut.jpg", encoded(picture, "JPEG")[:-60])
    large = bytearray(encoded(gray, "JPEG"))
    frame = large.index(b"\xff\xc0")
    large[frame + 5:frame + 9] = struct.pack(">2H", 65500, 65500)
    put("jpeg/bomb.jpg", bytes(large))

    put("png/rgb.png", encoded(picture, "PNG"))
    put("png/gray.png", encoded(gray, "PNG"))
    put("png/palette.png", encoded(palette, "PNG"))
    put("png/bits.png", encoded(gray.convert("1"), "PNG"))
    put("png/alpha.png", encoded(picture.convert("RGBA"), "PNG"))
    put("png/deep.png", encoded(gray.convert("I;16"), "PNG"))
    put("png/cut.png", encoded(picture, "PNG")[:-200])

    # The place of the part, then the file.
    wide = Image.frombytes("RGB", (70, 50), bytes((i * 37 + i // 7) % 256 for i in range(70 * 50 * 3)))
    put("region/middle.jpg", bytes([0x80, 1, 1, 9, 5, 0]) + encoded(wide, "JPEG"))
    put("region/half.jpg", bytes([0x41, 0, 0, 3, 3, 0]) + encoded(wide, "JPEG", quality=95))
    put("region/eighth.jpg", bytes([0x23, 0, 0, 1, 1, 0]) + encoded(wide, "JPEG", subsampling=0))
    put("region/restarts.jpg", bytes([0x10, 1, 2, 7, 7, 0]) + encoded(wide, "JPEG", restart_marker_blocks=2))
    put("region/optimised.jpg", bytes([0x10, 0, 1, 200, 90, 0]) + encoded(wide, "JPEG", optimize=True, quality=30))
    put("region/progressive.jpg", bytes([0x50, 1, 0, 9, 9, 0]) + encoded(wide, "JPEG", progressive=True))
    put("region/cmyk.jpg", bytes([0x50, 0, 0, 4, 4, 0]) + encoded(wide.convert("CMYK"), "JPEG"))
    damaged = bytearray(encoded(wide, "JPEG", quality=95))
    damaged[len(damaged) // 2] = 0xff
    put("region/damaged.jpg", bytes([0x30, 1, 1, 40, 40, 0]) + bytes(damaged))
    put("region/oriented.jpg", bytes(6) + encoded(wide, "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01"
                                                  b"\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"))
    put("region/rows.png", bytes([0, 3, 5, 7, 9, 0]) + encoded(wide, "PNG"))


main()
