# SPDX-License-Identifier: Apache-2.0
"""Makes tests/formats/fixtures/streams.json: small broken JPEG and PNG files, what Pillow says of each, and what Tessera
is to say. docs/data.md ("Broken image streams") gives the reasons group by group.

    make_stream_fixture.py            writes the fixture
    make_stream_fixture.py --check    makes it again and compares; exit code 1 where they differ
"""
import io
import json
import pathlib
import struct
import sys
import warnings
import zlib

import numpy as np
import PIL
from PIL import Image

FIXTURE = pathlib.Path(__file__).parent / "fixtures" / "streams.json"
MIB = 1 << 20
WIDTH, HEIGHT = 6, 5


def chunk(kind, content, crc=None):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content) if crc is None else crc)


def header(depth=8, kind=2, compression=0, method=0, interlace=0):
    return chunk(b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, depth, kind, compression, method, interlace))


RAW = b"".join(b"\0" + bytes((x * 30 + y * 40 + c * 20) % 256 for x in range(WIDTH) for c in range(3)) for y in range(HEIGHT))
PACKED = zlib.compress(RAW)
IDAT, IEND = chunk(b"IDAT", PACKED), chunk(b"IEND", b"")
INDICES = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + bytes((x + y) % 8 for x in range(WIDTH)) for y in range(HEIGHT))))


def png(before=b"", data=IDAT, after=b"", end=IEND, start=None):
    return b"\x89PNG\r\n\x1a\n" + (header() if start is None else start) + before + data + after + end


def palette(colours):
    return chunk(b"PLTE", bytes(range(3 * colours)))


def control(sequence=0, width=WIDTH, height=HEIGHT):
    return chunk(b"fcTL", struct.pack(">IIIIIHHBB", sequence, width, height, 0, 0, 1, 10, 0, 0))


def frames(count=2):
    return chunk(b"acTL", struct.pack(">II", count, 0))


def frame(sequence=2, data=PACKED):
    return chunk(b"fdAT", struct.pack(">I", sequence) + data)


def animated(first=None, second=None, count=2, data=None):
    return png(frames(count) + (control() if first is None else first),
               after=(control(1) if second is None else second) + (frame() if data is None else data))


def text(kind, start, content):
    return chunk(kind, start + zlib.compress(content))


def png_streams():
    """group -> (Tessera accepts, name -> bytes)."""
    wrong_crc = lambda kind, content: chunk(kind, content, 1)
    indexed = header(kind=3)
    return {
        "sound": (True, {"plain": png(), "animated": animated(), "palette": png(palette(8), INDICES, start=indexed)}),
        "PNG: animation chunk": (True, {
            "acTL of 4 bytes": png(chunk(b"acTL", b"\0\0\0\1")), "acTL of no frames": png(frames(0)),
            "acTL with a wrong CRC": png(wrong_crc(b"acTL", struct.pack(">II", 2, 0))),
            "acTL twice": png(frames() * 2 + control(), after=control(1) + frame()),
            "acTL after IDAT": png(control(), after=frames() + control(1) + frame()),
            "fcTL of 5 bytes": animated(first=chunk(b"fcTL", bytes(5))), "fcTL out of sequence": animated(first=control(7)),
            "fcTL larger than the image": animated(first=control(width=WIDTH + 1)),
            "fcTL of no pixels": animated(first=control(width=0, height=0)), "fcTL without acTL": png(control(7)),
            "second fcTL out of sequence": animated(second=control(9)), "second fcTL of 5 bytes": animated(second=chunk(b"fcTL", bytes(5))),
            "fdAT of 2 bytes": animated(data=chunk(b"fdAT", b"\0\0")), "fdAT out of sequence": animated(data=frame(9)),
            "fdAT of damaged data": animated(data=frame(data=b"damaged")), "fdAT missing": animated(count=5)}),
        "PNG: text or profile chunk": (True, {
            "tEXt without a zero": png(chunk(b"tEXt", b"key")), "tEXt with a wrong CRC": png(wrong_crc(b"tEXt", b"key\0x")),
            "zTXt of an unknown compression": png(text(b"zTXt", b"key\0\7", b"x")),
            "zTXt of an unknown compression, after IDAT": png(after=text(b"zTXt", b"key\0\7", b"x")),
            "zTXt without a stream": png(chunk(b"zTXt", b"key\0")), "zTXt of a damaged stream": png(chunk(b"zTXt", b"key\0\0damaged")),
            "zTXt of 2 MiB": png(text(b"zTXt", b"key\0\0", b"x" * 2 * MIB)),
            "zTXt of 2 MiB, after IDAT": png(after=text(b"zTXt", b"key\0\0", b"x" * 2 * MIB)),
            "iTXt of an unknown compression": png(text(b"iTXt", b"key\0\1\7\0\0", b"x")),
            "iTXt of 2 MiB": png(text(b"iTXt", b"key\0\1\0\0\0", b"x" * 2 * MIB)),
            "iTXt of a damaged stream": png(chunk(b"iTXt", b"key\0\1\0\0\0damaged")),
            "iCCP of an unknown compression": png(text(b"iCCP", b"name\0\7", b"x" * 200)),
            "iCCP of 2 MiB": png(text(b"iCCP", b"name\0\0", b"x" * 2 * MIB)), "iCCP of no bytes": png(chunk(b"iCCP", b""))}),
        "PNG: other ancillary chunk": (True, {
            "unknown, with a wrong CRC": png(wrong_crc(b"abCd", b"hello")), "gAMA of 3 bytes": png(chunk(b"gAMA", b"123")),
            "gAMA of 3 bytes, after IDAT": png(after=chunk(b"gAMA", b"123")), "cHRM of 31 bytes": png(chunk(b"cHRM", bytes(31))),
            "sRGB of no bytes": png(chunk(b"sRGB", b"")), "pHYs of 8 bytes": png(chunk(b"pHYs", bytes(8))),
            "pHYs with a wrong CRC": png(wrong_crc(b"pHYs", bytes(9))), "eXIf with a wrong CRC": png(wrong_crc(b"eXIf", bytes(9))),
            "tRNS of 1 byte": png(chunk(b"tRNS", b"\0")), "tRNS with a wrong CRC": png(wrong_crc(b"tRNS", bytes(6)))}),
        "PNG: end of the file": (True, {
            "no IEND": png(end=b""), "IEND cut in its length": png(end=IEND[:3]), "IEND cut in its CRC": png(end=IEND[:10]),
            "IEND with a wrong CRC": png(end=wrong_crc(b"IEND", b"")), "bytes after IEND": png(end=IEND + bytes(50)),
            "a chunk longer than the file": png(after=struct.pack(">I", 9999) + b"tEXt")}),
        "PNG: image data cut off": (False, {
            "IDAT half": png(data=IDAT[:8 + len(PACKED) // 2], end=b""), "IDAT without its last byte": png(data=IDAT[:7 + len(PACKED)], end=b""),
            "IDAT without its CRC": png(data=IDAT[:-4], end=b""), "no IDAT": png(data=b""),
            "half of the stream": png(data=chunk(b"IDAT", PACKED[:len(PACKED) // 2])),
            "stream without its checksum": png(data=chunk(b"IDAT", PACKED[:-4])),
            "a row missing": png(data=chunk(b"IDAT", zlib.compress(RAW[:-19])))}),
        "PNG: image data damaged": (False, {
            "IDAT with a wrong CRC": png(data=wrong_crc(b"IDAT", PACKED)),
            "stream damaged": png(data=chunk(b"IDAT", PACKED[:20] + b"\xff" * 8 + PACKED[20:])),
            "filter 9": png(data=chunk(b"IDAT", zlib.compress(b"\x09" + RAW[1:])))}),
        "PNG: more image data than pixels": (True, {
            "a row too many": png(data=chunk(b"IDAT", zlib.compress(RAW + RAW[:19]))),
            "bytes after the stream": png(data=chunk(b"IDAT", PACKED + bytes(30)))}),
        "PNG: critical chunk": (False, {
            "unknown": png(chunk(b"ABCD", b"hello")), "a name not of letters": png(chunk(b"a1Cd", b"hello")),
            "IHDR of 12 bytes": png(start=chunk(b"IHDR", header()[8:20])), "IHDR of 14 bytes": png(start=chunk(b"IHDR", header()[8:21] + b"\0")),
            "IHDR with a wrong CRC": png(start=wrong_crc(b"IHDR", header()[8:21])), "IHDR twice": png(header()),
            "depth 3": png(start=header(depth=3)), "compression 1": png(start=header(compression=1)),
            "filter method 1": png(start=header(method=1)), "interlace 2": png(start=header(interlace=2)),
            "no PLTE": png(b"", INDICES, start=indexed), "PLTE after IDAT": png(b"", INDICES + palette(8), start=indexed),
            "PLTE of 7 bytes": png(chunk(b"PLTE", b"1234567"), INDICES, start=indexed),
            "PLTE of no colours": png(palette(0), INDICES, start=indexed), "PLTE twice": png(palette(8) * 2, INDICES, start=indexed)}),
    }


def jpeg_streams():
    x, y = np.meshgrid(np.arange(24), np.arange(24))
    picture = Image.fromarray(((x * 29) ^ (y * 53) ^ (x * y * 7)).astype(np.uint8))

    def encoded(**keys):
        out = io.BytesIO()
        picture.save(out, "JPEG", quality=90, **keys)
        return out.getvalue()

    sound, progressive = encoded(), encoded(progressive=True)
    scan = sound.index(b"\xff\xda") + 10  # the data begin here
    frame_at = sound.index(b"\xff\xc0")
    middle = (scan + len(sound)) // 2
    assert 0xFF not in sound[middle - 3:middle + 3]
    among = lambda marker, at=middle: sound[:at] + marker + sound[at:]
    before_end = len(sound) - 2
    return {
        "JPEG: sound": (True, {"sequential": sound, "progressive": progressive}),
        "JPEG: marker that cannot stand there": (False, {
            "FF 12 among the data": among(b"\xff\x12"), "FF 02 among the data": among(b"\xff\x02"),
            "SOF3 among the data": among(b"\xff\xc3\0\x11"), "second SOF0 among the data": among(sound[frame_at:frame_at + 13]),
            "SOI among the data": among(b"\xff\xd8"), "DQT of a wrong length among the data": among(b"\xff\xdb\0\1"),
            "FF 12 after the data": among(b"\xff\x12", before_end), "SOS after the data": among(sound[scan - 10:scan], before_end)}),
        "JPEG: damaged data": (True, {
            "bytes changed": sound[:middle] + bytes(b ^ 0x55 for b in sound[middle:middle + 3]) + sound[middle + 3:],
            "bytes missing": sound[:middle] + sound[middle + 4:], "end marker among the data": among(b"\xff\xd9"),
            "restart marker among the data": among(b"\xff\xd0"), "stray bytes before the frame": among(b"abc", frame_at),
            "bytes after the end marker": sound + bytes(20)}),
        "JPEG: end marker missing": (True, {"both bytes": sound[:-2], "one byte": sound[:-1]}),
        "JPEG: end marker of a progressive image missing": (False, {"both bytes": progressive[:-2]}),
        "JPEG: cut off": (False, {
            "in the data": sound[:middle], "in the header": sound[:frame_at + 5], "in a progressive image": progressive[:len(progressive) // 2]}),
        "JPEG: marker TEM before the frame": (True, {"FF 01": among(b"\xff\x01", frame_at)}),
        "JPEG: reserved marker before the frame": (False, {"FF 02": among(b"\xff\x02", frame_at)}),
    }


def verdict(stream):
    """Pillow's pixels after "ok", or its error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return "ok", Image.open(io.BytesIO(stream)).convert("RGB").tobytes()
        except Exception as error:  # of many kinds
            return f"{type(error).__name__}: {error}".split("<_io")[0].strip(), None


def main():
    streams = []
    for group, (accepted, members) in (png_streams() | jpeg_streams()).items():
        for name, stream in members.items():
            said, pixels = verdict(stream)
            streams.append({"group": group, "name": name, "pillow": said, "tessera": "ok" if accepted else "refused",
                            "rgb": pixels.hex() if pixels and group.startswith(("sound", "PNG")) else "", "bytes": stream.hex()})
    made = json.dumps({"pillow": PIL.__version__, "streams": streams}, indent=0) + "\n"
    if "--check" in sys.argv[1:]:
        if made == FIXTURE.read_text():
            return 0
        print(f"{FIXTURE} is not what this program makes with Pillow {PIL.__version__}")
        return 1
    FIXTURE.write_text(made)
    print(f"wrote {FIXTURE.name}: {len(made)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
