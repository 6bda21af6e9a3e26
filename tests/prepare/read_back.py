#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads what `tessera data pack` wrote with Python's own readers and compares it with what went in.

read_back.py FORM FOLDER EXPECTED. EXPECTED: JSON, split -> list of [path, key, label, SHA-256 of the image] in order.
FORM: folder, wds, zip, tfrecord (read here by tarfile, zipfile and a few lines for TFRecord and protobuf), or
torchvision, webdataset, tfds, which need the package of that name. Exit code 77: the package is not there.
"""
import hashlib
import json
import pathlib
import struct
import sys
import tarfile
import zipfile


def digest(content):
    return hashlib.sha256(content).hexdigest()


def folder(root, split, rows):
    found = {}
    classes = sorted(path.name for path in (root / split).iterdir())
    for path in (root / split).rglob("*.*"):
        name = str(path.relative_to(root / split))
        found[name] = (classes.index(path.parent.name), digest(path.read_bytes()))
    assert found == {path: (label, sha) for path, _, label, sha in rows}, found


def wds(root, split, rows):
    found = []
    for shard in sorted(root.glob(f"*{split}-*.tar")):
        with tarfile.open(shard) as archive:
            members = archive.getmembers()
            for member in members:
                assert (member.mtime, member.uid, member.gid, member.uname, member.gname) == (0, 0, 0, "", "")
            for text, image in zip(members[::2], members[1::2]):
                key, ending = image.name.split(".")
                assert text.name == key + ".cls" and ending in ("jpg", "png"), (text.name, image.name)
                content = archive.extractfile(image).read()
                assert content.startswith(b"\x89PNG" if ending == "png" else b"\xff\xd8")
                found.append([key, int(archive.extractfile(text).read()), digest(content)])
        check_index(shard, shard.with_suffix(".idx"))
    for number, shard in enumerate(sorted(root.glob(f"*{split}-*.tar"))):
        check_index(shard, root / "indexes" / split / f"idx_{number}.txt")
    assert found == [[key, label, sha] for _, key, label, sha in rows]


def check_index(shard, index):
    """Each line of DALI's index leads to the bytes that tarfile finds."""
    if not index.exists():
        return
    with tarfile.open(shard) as archive:
        members = {member.name: (member.offset_data, member.size) for member in archive.getmembers()}
    head, *lines = index.read_text().splitlines()
    assert head == f"v1.2 {len(lines)}" and 2 * len(lines) == len(members), (head, len(lines), len(members))
    for line in lines:
        words = line.split(" ")
        for ending, offset, size, name in zip(*[iter(words)] * 4):
            assert name.endswith("." + ending) and members[name] == (int(offset), int(size)), line


def zipped(root, split, rows):
    lines = (root / f"{split}_map.txt").read_text().splitlines()
    assert lines == [f"{path}\t{label}" for path, _, label, _ in rows]
    with zipfile.ZipFile(root / f"{split}.zip") as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [path for path, _, _, _ in rows]
        for path, _, _, sha in rows:
            assert archive.getinfo(path).compress_type == zipfile.ZIP_STORED
            assert digest(archive.read(path)) == sha, path


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def table_entry(value):
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


TABLE = [table_entry(i) for i in range(256)]


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
        shift += 7


def fields(data):
    """(number, content) of the length-delimited fields of a message."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        assert tag & 7 == 2, tag
        size, at = varint(data, at)
        yield tag >> 3, data[at:at + size]
        at += size


def example(record):
    (number, features), = fields(record)
    assert number == 1
    found = {}
    for _, entry in fields(features):
        entry = dict(fields(entry))
        (kind, values), = fields(entry[2])
        (_, value), = fields(values)
        found[entry[1].decode()] = varint(value, 0)[0] if kind == 3 else value
    return found


def records(path):
    data, at = path.read_bytes(), 0
    while at < len(data):
        length, length_crc = struct.unpack_from("<QI", data, at)
        payload = data[at + 12:at + 12 + length]
        assert crc32c(data[at:at + 8]) == length_crc
        assert crc32c(payload) == struct.unpack_from("<I", data, at + 12 + length)[0]
        yield payload
        at += 16 + length


def tfrecord(root, split, rows):
    info = json.loads((root / "dataset_info.json").read_text())
    features = json.loads((root / "features.json").read_text())["featuresDict"]["features"]
    assert sorted(features) == ["file_name", "image", "label"]
    entry, = (entry for entry in info["splits"] if entry["name"] == split)
    count, found = len(entry["shardLengths"]), []
    for number, length in enumerate(entry["shardLengths"]):
        path = root / f"{info['name']}-{split}.tfrecord-{number:05}-of-{count:05}"
        shard = [example(record) for record in records(path)]
        assert len(shard) == int(length), path
        found += [[row["file_name"].decode(), row["label"], digest(row["image"])] for row in shard]
    assert found == [[path, label, sha] for path, _, label, sha in rows]


def torchvision(root, split, rows):
    from torchvision.datasets import ImageFolder
    found = [[str(pathlib.Path(path).relative_to(root / split)), label, digest(pathlib.Path(path).read_bytes())]
             for path, label in ImageFolder(root / split).samples]
    assert sorted(found) == sorted([path, label, sha] for path, _, label, sha in rows)


def webdataset(root, split, rows):
    import webdataset as package
    shards = [str(path) for path in sorted(root.glob(f"*{split}-*.tar"))]
    found = [[row["__key__"], int(row["cls"]), digest(row.get("jpg") or row["png"])]
             for row in package.WebDataset(shards, shardshuffle=False)]
    assert found == [[key, label, sha] for _, key, label, sha in rows]


def tfds(root, split, rows):
    import tensorflow_datasets as package
    builder = package.builder_from_directory(root)
    assert builder.info.splits[split].num_examples == len(rows)
    labels = builder.info.features["label"]
    assert [labels.int2str(i) for i in range(labels.num_classes)] == (root / "label.labels.txt").read_text().split("\n")[:-1]
    skip = {"image": package.decode.SkipDecoding()}
    read = package.ReadConfig(interleave_cycle_length=1)
    found = [[row["file_name"].decode(), int(row["label"]), digest(row["image"])] for row in package.as_numpy(
        builder.as_dataset(split=split, decoders=skip, shuffle_files=False, read_config=read))]
    assert found == [[path, label, sha] for path, _, label, sha in rows]


if __name__ == "__main__":
    form, root, expected = sys.argv[1], pathlib.Path(sys.argv[2]), json.loads(pathlib.Path(sys.argv[3]).read_text())
    reader = {"folder": folder, "wds": wds, "zip": zipped, "tfrecord": tfrecord, "torchvision": torchvision,
              "webdataset": webdataset, "tfds": tfds}[form]
    try:
        for split, rows in expected.items():
            reader(root, split, rows)
    except ImportError as error:
        print(error)
        sys.exit(77)
