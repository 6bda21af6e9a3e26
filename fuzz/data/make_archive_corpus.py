# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of fuzz/corpus/{tar,example,gzip_stream,wds,tfrecord,lists,index} from tests/data/fixtures. Python 3,
standard library."""
import gzip
import pathlib
import struct

ROOT = pathlib.Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "data" / "fixtures"


def put(name, content):
    path = ROOT / "fuzz" / "corpus" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def section(content):
    return struct.pack("<Q", len(content)) + content + bytes(-len(content) % 8)


def index_body(label):
    """The sections of an index file with one sample; see tessera/data/index_builder.cpp."""
    columns = [b"folder\ntrain\n", b"train\0", b"cat\0", b"a note\0", b"", b"cat/1.jpg", struct.pack("<Q", 9),
               struct.pack("<i", label), b"", b"", b"", b"", b"", b"", b"", b""]
    return b"".join(map(section, columns)) + struct.pack("<Q", 0)


def short_tar(path):
    """Without the zeros that fill Python's tar files up to 10 KiB, but for the end mark."""
    content = path.read_bytes().rstrip(b"\0")
    return content + bytes(-len(content) % 512 + 1024)


def main():
    tars = {form: short_tar(FIXTURES / "tar" / f"{form}.tar") for form in ("ustar", "gnu", "pax")}
    shard = short_tar(FIXTURES / "wds" / "set-train-000000.tar")
    packed = (FIXTURES / "wds" / "set-val-000000.tar.gz").read_bytes()
    for form, content in tars.items():
        put(f"tar/{form}", content)
    put("tar/cut", tars["pax"][:2000])
    put("wds/cls", b"\0" + shard)
    put("wds/json_packed", b"\1" + packed)
    put("wds/cut", b"\0" + shard[:3650])
    put("gzip_stream/shard", packed)
    put("gzip_stream/members", gzip.compress(bytes(range(256)) * 8, mtime=0) + gzip.compress(b"two", mtime=0) + bytes(9))
    records = (FIXTURES / "tfrecord" / "train-00000-of-00002").read_bytes()
    length, = struct.unpack("<Q", records[:8])
    put("tfrecord/plain", records)
    put("tfrecord/packed", (FIXTURES / "tfrecord" / "validation.tfrecord.gz").read_bytes())
    put("tfrecord/cut", records[:-5])
    put("example/image", records[12:12 + length])
    put("example/cut", records[12:12 + length // 2])
    put("lists/map", (FIXTURES / "zip" / "train_map.txt").read_bytes() + b"a b  \nalone\n")
    put("lists/dali", (FIXTURES / "wds_index" / "idx_0.txt").read_bytes())
    put("lists/braces", b"a-{00..12}.tar,{b,c}::d{split}")
    put("lists/classes", b"cat\r\ndog \n")
    for name in ("dataset_info", "features"):
        put(f"lists/{name}.json", (FIXTURES / "tfds" / "tiny" / "1.10.0" / f"{name}.json").read_bytes())
    put("lists/old_features.json", b'{"type": "x.FeaturesDict", "content": {"image": {"type": "x.Image"}}}')
    put("index/sound", index_body(0))
    put("index/label_too_large", index_body(1))
    put("index/cut", index_body(0)[:100])


main()
