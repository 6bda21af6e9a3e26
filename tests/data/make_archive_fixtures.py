# SPDX-License-Identifier: Apache-2.0
"""Makes tests/data/fixtures: small archives by the Python writers that people use.

Needs pillow, webdataset 1.0.2 and tfrecord 1.14.6:
    python3 -m venv fx && fx/bin/pip install webdataset==1.0.2 tfrecord==1.14.6 pillow
    fx/bin/python tests/data/make_archive_fixtures.py
Image i of a set is 8 x 8 of the one colour (20 i, 20 i, 20 i), a PNG; its label is i % 3.
"""
import gzip
import io
import json
import pathlib
import shutil
import struct
import tarfile
import zipfile

import tfrecord
import webdataset
from PIL import Image

ROOT = pathlib.Path(__file__).parent / "fixtures"


def png(level):
    out = io.BytesIO()
    Image.new("RGB", (8, 8), (level, level, level)).save(out, "PNG")
    return out.getvalue()


def folder(name):
    path = ROOT / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def dali_index(shard, index):
    """The text form v1.2 of DALI's tools/wds2idx.py: members with one basename, one after the other, on one line."""
    groups = []
    with tarfile.open(shard) as archive:
        for member in archive:
            key, ending = member.name[:member.name.find(".")], member.name[member.name.find(".") + 1:]
            if not groups or groups[-1][0] != key:
                groups.append((key, []))
            groups[-1][1].append(f"{ending} {member.offset_data} {member.size} {member.name}")
    lines = [f"v1.2 {len(groups)}"] + [" ".join(members) for _, members in groups]
    index.write_text("\n".join(lines) + "\n")


def make_wds():
    root = folder("wds")
    for shard, first in ((0, 0), (1, 3)):
        with webdataset.TarWriter(str(root / f"set-train-{shard:06d}.tar")) as writer:
            for i in range(first, first + 3):
                writer.write({"__key__": f"{i:04d}", "png": png(20 * i), "cls": i % 3})
    with webdataset.TarWriter(str(root / "set-val-000000.tar.gz"), compress=True) as writer:
        for i in range(4):
            writer.write({"__key__": f"n{i % 3}/{i:04d}", "png": png(20 * i), "json": {"label": i % 3, "text": "x"}})
    indices = folder("wds_index")
    for shard in range(2):
        dali_index(root / f"set-train-{shard:06d}.tar", indices / f"idx_{shard}.txt")


def make_tars():
    """Long names in each of the formats that Python's tarfile writes."""
    root = folder("tar")
    long_name = "a" * 90 + "/" + "b" * 120 + "/\u00e9"
    for name, form in (("ustar", tarfile.USTAR_FORMAT), ("gnu", tarfile.GNU_FORMAT), ("pax", tarfile.PAX_FORMAT)):
        with tarfile.open(root / f"{name}.tar", "w", format=form) as archive:
            link = tarfile.TarInfo("link.png")
            link.type, link.linkname = tarfile.SYMTYPE, "1.png"
            archive.addfile(link)
            directory = tarfile.TarInfo("folder")
            directory.type = tarfile.DIRTYPE
            archive.addfile(directory)
            for member, content in (("folder/1.png", png(20)), ("folder/1.cls", b"1\n"),
                                    ("a" * 90 + "/" + "c" * 90 + ".cls" if form == tarfile.USTAR_FORMAT
                                     else long_name + ".cls", b"2")):
                info = tarfile.TarInfo(member)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))


def make_zip():
    root = folder("zip")
    names = [f"n{i % 3:02d}/{i}.png" for i in range(6)]
    with zipfile.ZipFile(root / "train.zip", "w") as archive:
        for i, name in enumerate(names):
            method = zipfile.ZIP_DEFLATED if i % 2 else zipfile.ZIP_STORED
            archive.writestr(zipfile.ZipInfo(name), png(20 * i), method)
    (root / "train_map.txt").write_text("".join(f"{name}\t{i % 3}\n" for i, name in enumerate(names)))
    with zipfile.ZipFile(root / "val.zip", "w") as archive:
        for i in range(3):
            with archive.open(zipfile.ZipInfo(f"val_{i}.png"), "w", force_zip64=True) as file:
                file.write(png(20 * i))
    (root / "val_map.txt").write_text("".join(f"val_{i}.png\t{i % 3}\n" for i in range(3)))


def make_tfrecord():
    root = folder("tfrecord")
    for shard, first in ((0, 0), (1, 2)):
        writer = tfrecord.TFRecordWriter(str(root / f"train-{shard:05d}-of-00002"))
        for i in range(first, first + 2):
            writer.write({"image/encoded": (png(20 * i), "byte"), "image/class/label": (i % 3 + 1, "int"),
                          "image/class/text": (b"name", "byte")})
        writer.close()
    plain = root / "validation.tfrecord"
    writer = tfrecord.TFRecordWriter(str(plain))
    for i in range(3):
        writer.write({"image": (png(20 * i), "byte"), "label": (i % 3, "int"), "weight": (0.5, "float")})
    writer.close()
    (root / "validation.tfrecord.gz").write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
    plain.unlink()


def make_tfds():
    """The layout that tfds 4.9 writes; the JSON files hold the fields that readers look at."""
    root = folder("tfds")
    for version, count in (("1.2.0", 1), ("1.10.0", 3)):
        path = root / "tiny" / version
        path.mkdir(parents=True)
        writer = tfrecord.TFRecordWriter(str(path / "tiny-train.tfrecord-00000-of-00001"))
        for i in range(count):
            writer.write({"file_name": (b"%d.png" % i, "byte"), "image": (png(20 * i), "byte"), "label": (i % 3, "int")})
        writer.close()
        (path / "dataset_info.json").write_text(json.dumps({
            "fileFormat": "tfrecord", "moduleName": "tiny", "name": "tiny", "releaseNotes": {"1.0.0": "First."},
            "splits": [{"filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}", "name": "train",
                        "numBytes": "300", "shardLengths": [str(count)]}],
            "supervisedKeys": {"tuple": {"items": [{"featureKey": "image"}, {"featureKey": "label"}]}},
            "version": version}, indent=2))
        core = "tensorflow_datasets.core.features"
        (path / "features.json").write_text(json.dumps({
            "pythonClassName": f"{core}.features_dict.FeaturesDict",
            "featuresDict": {"features": {
                "file_name": {"pythonClassName": f"{core}.text_feature.Text", "text": {}},
                "image": {"pythonClassName": f"{core}.image_feature.Image",
                          "image": {"shape": {"dimensions": ["-1", "-1", "3"]}, "dtype": "uint8",
                                    "encodingFormat": "png"}},
                "label": {"pythonClassName": f"{core}.class_label_feature.ClassLabel",
                          "classLabel": {"numClasses": "3"}}}}}, indent=2))
        (path / "label.labels.txt").write_text("cat\ndog\nfish\n")


def make_cifar():
    root = folder("cifar")

    def record(labels, i):
        return bytes(labels) + bytes([10 * i] * 1024 + [10 * i + 1] * 1024 + [10 * i + 2] * 1024)

    def add(archive, name, content):
        info = tarfile.TarInfo(name)
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))

    with tarfile.open(root / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for batch in range(1, 6):
            add(archive, f"cifar-10-batches-bin/data_batch_{batch}.bin", record([batch], batch) + record([9], 9))
        add(archive, "cifar-10-batches-bin/test_batch.bin", record([7], 7))
        names = "airplane automobile bird cat deer dog frog horse ship truck".split()
        add(archive, "cifar-10-batches-bin/batches.meta.txt", ("\n".join(names) + "\n\n").encode())
    hundred = root / "cifar-100-binary"
    hundred.mkdir()
    (hundred / "train.bin").write_bytes(record([3, 42], 1))
    (hundred / "test.bin").write_bytes(record([0, 99], 2) + record([1, 0], 3))


if __name__ == "__main__":
    make_wds()
    make_tars()
    make_zip()
    make_tfrecord()
    make_tfds()
    make_cifar()
    assert struct.unpack("<Q", (ROOT / "tfrecord/train-00000-of-00002").read_bytes()[:8])[0] > 0
