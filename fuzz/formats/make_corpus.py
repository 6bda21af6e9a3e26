# SPDX-License-Identifier: Apache-2.0
"""Makes the corpora of pickle, zip and torch. Python 3, standard library; torch's files are copies of fixtures."""
import argparse
import collections
import io
import pathlib
import pickle
import shutil
import zipfile

ROOT = pathlib.Path(__file__).parents[2]
CORPUS = ROOT / "fuzz" / "corpus"
VALUE = collections.OrderedDict(
    none=None, flags=[True, False], numbers=(0, 255, 65535, -1, 2 ** 40, 2 ** 80, 1.5), text="\u00e9" * 300, raw=b"\0\1",
    nested={"a": [{}, [], ()], 3: {1, 2}}, args=argparse.Namespace(lr=0.1))


def main():
    for protocol in range(2, 6):
        (CORPUS / "pickle" / f"protocol_{protocol}").write_bytes(pickle.dumps(VALUE, protocol))
    small = collections.OrderedDict(a=[1, (2.0,)], b="x")
    loop = []
    loop.append(loop)
    (CORPUS / "pickle" / "small").write_bytes(pickle.dumps(small, 2))
    (CORPUS / "pickle" / "loop").write_bytes(pickle.dumps(loop, 4))
    (CORPUS / "pickle" / "system").write_bytes(b"\x80\x02cos\nsystem\nX\x02\0\0\0ls\x85R.")
    for name, wide in (("plain", False), ("wide", True)):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for member in ("a", "folder/b"):
                with archive.open(zipfile.ZipInfo(member), "w", force_zip64=wide) as file:
                    file.write(member.encode() * 3)
            archive.writestr("packed", "x" * 200, zipfile.ZIP_DEFLATED)
            archive.comment = b"comment"
        (CORPUS / "zip" / name).write_bytes(buffer.getvalue())
    for source, name in (("formats/fixtures/values.pth", "values"), ("formats/fixtures/older.pth", "older"),
                         ("checkpoint/fixtures/xla_fsdp/flat_rank-0-of-2.pth", "xla_flat")):
        shutil.copy(ROOT / "tests" / source, CORPUS / "torch" / name)


main()
