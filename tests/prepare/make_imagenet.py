#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes fixtures/imagenet: an imitation of the archives of ILSVRC2012. Needs scipy (1.17.1 made what is there).

make_imagenet.py FOLDER writes img_train.tar, img_val.tar, devkit_t12.tar.gz, and meta_plain.mat, meta_packed.mat: the
same synsets, uncompressed and compressed. Four classes whose numbers are not in the order of their WordNet ids, and
two of their ancestors; images are bytes that begin as a JPEG file does.
"""
import gzip
import io
import pathlib
import sys
import tarfile

import numpy
import scipy.io

CLASSES = {1: ("n02119789", "kit fox, Vulpes macrotis"), 2: ("n02100735", "English setter"),
           3: ("n01440764", "tench, Tinca tinca"), 4: ("n03000684", "chain saw, chainsaw — Kettensäge")}
ANCESTORS = {5: ("n00001740", "entity", [6]), 6: ("n00001930", "physical entity", [1, 2, 3, 4])}
TRAIN = {1: 3, 2: 2, 3: 4, 4: 1}  # images of each class
TRUTH = [3, 1, 4, 2, 3, 3]


def image(text):
    return b"\xff\xd8\xff" + text.encode() + b"\xff\xd9"


def tar(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def meta(compress):
    fields = ["ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children", "wordnet_height", "num_train_images"]
    synsets = numpy.zeros((6, 1), dtype=[(name, object) for name in fields])
    for i, (number, (wnid, words, *children)) in enumerate({**CLASSES, **ANCESTORS}.items()):
        children = children[0] if children else []
        synsets[i, 0] = (float(number), wnid, words, f"a {words}", float(len(children)),
                         numpy.array(children, dtype=numpy.uint16), float(len(children)), float(TRAIN.get(number, 0)))
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, {"synsets": synsets}, do_compression=compress)
    text = b"MATLAB 5.0 MAT-file, made by make_imagenet.py"
    return text.ljust(116) + buffer.getvalue()[116:]  # scipy writes the time there


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    train = [(f"{wnid}.tar", tar((f"{wnid}_{i}.JPEG", image(f"{wnid} {i}")) for i in range(TRAIN[number])))
             for number, (wnid, _) in sorted(CLASSES.items(), key=lambda entry: entry[1])]
    (folder / "img_train.tar").write_bytes(tar(train))
    (folder / "img_val.tar").write_bytes(tar((f"ILSVRC2012_val_{i:08}.JPEG", image(f"val {i}"))
                                             for i in range(1, len(TRUTH) + 1)))
    kit = tar([("ILSVRC2012_devkit_t12/readme.txt", b"an imitation\n"),
               ("ILSVRC2012_devkit_t12/data/meta.mat", meta(True)),
               ("ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt",
                "".join(f"{number}\n" for number in TRUTH).encode())])
    (folder / "devkit_t12.tar.gz").write_bytes(gzip.compress(kit, mtime=0))
    for name, compress in (("meta_plain.mat", False), ("meta_packed.mat", True)):
        (folder / name).write_bytes(meta(compress))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
