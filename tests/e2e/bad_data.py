# SPDX-License-Identifier: Apache-2.0
"""Bad data of every kind through every `tessera data` tool and a training: named, counted, nothing crashes or hangs.

And nothing is written into a data folder: its files are the same before and after.
"""
import contextlib
import gzip
import io
import os
import random
import re
import signal
import struct
import subprocess
import tarfile
import time
import zipfile
import zlib

from bad_input import check_refused
from files import JPEG, make_image_folder, png, shared_data
from harness import Skip, check, main, scratch, settings, summary, tessera, train

LIMIT = 120.0  # seconds; nothing here needs two, on a machine of its own
GOOD = [png(16, lambda x, y, k=k: (x * y + 7 * k) % 256) for k in range(8)]
BOMB_PNG = GOOD[0][:16] + struct.pack(">II", 65535, 65535) + GOOD[0][24:29] + struct.pack(
    ">I", zlib.crc32(GOOD[0][12:16] + struct.pack(">II", 65535, 65535) + GOOD[0][24:29])) + GOOD[0][33:]
FRAME = JPEG.index(b"\xff\xc0")
BOMB_JPEG = JPEG[:FRAME + 5] + b"\xff\xff\xff\xff" + JPEG[FRAME + 9:]
FOREIGN = os.fsdecode(b"caf\xe9\xff")  # no UTF-8


def tree(folder):
    """Everything in a folder: name -> (size, time of change)."""
    found = {}
    for place, folders, files in os.walk(folder):
        for name in [*folders, *files, "."]:
            state = os.lstat(os.path.join(place, name))
            found[os.path.relpath(os.path.join(place, name), folder)] = (state.st_size, state.st_mtime_ns)
    return found


def images(folder, broken):
    """train/ and val/ with two classes: good images, and those of `broken` (name -> bytes) in the first class."""
    for split in ("train", "val"):
        for label, name in enumerate(("n0", "n1")):
            place = folder / split / name
            place.mkdir(parents=True)
            for k in range(8):
                (place / f"{k}.png").write_bytes(GOOD[k])
        for name, content in broken.items():
            (folder / split / "n0" / name).write_bytes(content)
    return f"folder:{folder}"


def tar_bytes(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def pairs(count=8):
    return [(f"{k:04}.{ending}", content) for k in range(count)
            for ending, content in (("cls", str(k % 2).encode()), ("png", GOOD[k]))]


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value):
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def field(content):
    return b"\x0a" + varint(len(content)) + content


def record(label, image):
    def feature(name, kind, value):
        content = bytes([kind << 3 | 2]) + varint(len(value)) + value
        return field(field(name) + b"\x12" + varint(len(content)) + content)

    payload = field(feature(b"image", 1, field(image)) + feature(b"label", 3, b"\x08" + varint(label)))
    head = struct.pack("<Q", len(payload))
    return head + struct.pack("<I", crc32c(head)) + payload + struct.pack("<I", crc32c(payload))


def zip_bytes(members, **how):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in members:
            with archive.open(zipfile.ZipInfo(name), "w", **how) as member:
                member.write(content)
    return out.getvalue()


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        for split in ("train", "val"):
            (folder / name.replace("{}", split)).write_bytes(content)


def flipped(content, at):
    return content[:at] + bytes([content[at] ^ 0x40]) + content[at + 1:]


def cases(folder):
    """(source, broken samples of a full pass (None: any number), what a report says)."""
    cut = GOOD[1][:-30]
    yield images(folder / "none", {"x.jpg": b"<html>", "y.jpg": b"", "z.png": cut}), 3, r"n0/y\.jpg: .*"
    yield images(folder / "bombs", {"a.png": BOMB_PNG, "b.jpg": BOMB_JPEG}), 2, r"178,?956,?970"
    yield images(folder / "names", {f"{FOREIGN}.png": cut, "line\nfeed.png": cut}), 2, r"n0/line\\nfeed\.png: "
    (folder / "pipes").mkdir()
    spec = images(folder / "pipes/data", {})
    for split in ("train", "val"):
        os.mkfifo(folder / f"pipes/data/{split}/n0/pipe.jpg")
        os.symlink("nowhere", folder / f"pipes/data/{split}/n0/link.jpg")
        (folder / f"pipes/data/{split}/n2").mkdir()
    yield spec, 2, r"link\.jpg: .*No such file"
    draw = random.Random(7)
    spoiled = {f"f{k}.jpg": flipped(JPEG, draw.randrange(2, len(JPEG))) for k in range(40)}
    yield images(folder / "spoiled", spoiled), None, r"broken"
    whole = tar_bytes(pairs())
    write(folder / "cut-tar", {"set-{}-0.tar": whole, "set-{}-1.tar": whole[:len(whole) // 2 + 100]})
    yield f"wds:{folder}/cut-tar", 1, r"set-train-1\.tar"
    write(folder / "cut-gz", {"set-{}-0.tar.gz": gzip.compress(whole)[:-200]})
    yield f"wds:{folder}/cut-gz", 1, r"set-train-0\.tar\.gz"
    members = pairs()
    write(folder / "faults", {"set-{}-0.tar": tar_bytes(
        members[:4] + members[5:] + [("9.cls", b"1"), ("8.png", GOOD[0]), ("7.cls", b"many"), ("7.png", GOOD[0])] + members[:2])})
    yield f"wds:{folder}/faults", 5, r"0002"
    write(folder / "foreign", {"set-{}-0.tar": tar_bytes(members + [(f"{FOREIGN}.cls", b"0"), (f"{FOREIGN}.png", cut)])})
    yield f"wds:{folder}/foreign", 1, r"broken   1"
    named = [(f"n{k % 2}/{k}.png", GOOD[k]) for k in range(8)]
    lines = "".join(f"{name}\t{name[1]}\n" for name, _ in named)
    content = zip_bytes(named, force_zip64=True)
    write(folder / "zip", {"{}.zip": flipped(content, content.index(GOOD[3]) + 50),
                           "{}_map.txt": (lines + "n0/none.png\t0\nn0/0.png\t0\n").encode()})
    yield f"zip:{folder}/zip", 3, r"has the CRC"
    write(folder / "zip-names", {"{}.zip": zip_bytes([*named, ("n0/caf\u00e9.png", cut)]),
                                 "{}_map.txt": lines.encode() + "n0/caf\u00e9.png\t0\n".encode("latin-1")})
    yield f"zip:{folder}/zip-names", 1, r"broken   1"
    records = [record(k % 2, GOOD[k]) for k in range(8)]
    wrong = flipped(records[2], 60)
    write(folder / "records", {"{}-00000-of-00001": b"".join([*records[:2], wrong, *records[3:]])[:-7]})
    yield f"tfrecord:{folder}/records", 2, r"checksum"
    odd = shared_data("odd")
    if odd:
        files = {path.name: path.read_bytes() for path in odd.iterdir() if path.suffix in (".jpg", ".jpeg", ".png")}
        yield images(folder / "odd", files), None, r"broken"


def every_tool():
    with scratch() as folder:
        env = {"XDG_CACHE_HOME": str(folder / "cache")}
        for number, (source, broken, pattern) in enumerate(cases(folder / "data")):
            place = source.split(":", 1)[1]
            before = tree(place)

            def call(*words, code=0):
                run = tessera("data", *words, folder=folder, env=env)
                check(run.wait(LIMIT) == code, f"exit {code} was expected:", run.process.returncode, run.words, run.tail())
                return run.text()

            text = call("inspect", source, "--full", "--html", folder / f"{number}.html")
            check(re.search(pattern, text), source, pattern, text)
            counted = int((re.search(r"broken +(\d+)", text) or [0, 0])[1])
            check(broken is None or counted == broken, source, "broken:", counted, "expected:", broken, text)
            call("index", source, "--index-dir", folder / f"index{number}")
            packed = folder / f"packed{number}"
            call("pack", source, packed, "--to", "wds", "--skip-broken")
            call("inspect", f"wds:{packed}", "--full")
            keys = settings(data__source=source, train__batch=8, train__steps=2, data__error_limit=1)
            with train(folder, "--dry-run", *keys, run=f"dry{number}", env=env) as run:
                check(run.wait(LIMIT) == 0, run.tail())
            with train(folder, *keys, run=f"run{number}", env=env) as run:
                check(run.wait(LIMIT) == 0, run.tail())
            check(tree(place) == before, "the data folder is another", source)


def read_only_data():
    """Data, and a folder for indexes, that cannot be written: a warning where that was asked for, and the run goes on."""
    with scratch() as folder:
        images(folder / "data", {})
        script = f"mount --bind {folder}/data {folder}/data && mount -o remount,ro,bind {folder}/data && exec \"$@\""
        if subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", "true"], capture_output=True).returncode != 0:
            raise Skip("mounting in a namespace of its own is not allowed here")
        for where, warned in (("none", False), ("beside", True), (folder / "data/index", True)):
            run = tessera("data", "inspect", f"folder:{folder}/data", "--index-dir", where, folder=folder,
                          prefix=["unshare", "-m", "sh", "-c", script, "sh"])
            text = run.done(LIMIT)
            check(("made anew at every start" in text) == warned and ("Read-only" in text) == warned, where, text)
        run = tessera("data", "index", f"folder:{folder}/data", "--index-dir", "beside", folder=folder,
                      prefix=["unshare", "-m", "sh", "-c", script, "sh"])
        check_refused(run, r"the index cannot be written: .*Read-only file system")


def many_files(folder, count=30000):
    for split in ("train", "val"):
        for label in range(10):
            (folder / split / f"n{label}").mkdir(parents=True)
        for k in range(count if split == "train" else 10):
            (folder / split / f"n{k % 10}" / f"{k}.jpg").touch()
    return f"folder:{folder}"


def several_at_once_and_killed():
    """Four processes index the same 30,000 (empty) files, some are killed: the next one has a whole index."""
    with scratch() as folder:
        source = many_files(folder / "data")
        before = tree(folder / "data")
        words = ("data", "index", source, "--split", "train", "--index-dir", folder / "index")
        runs = [tessera(*words, folder=folder) for _ in range(4)]
        texts = [run.done(LIMIT) for run in runs]
        check(sum("made in" in text for text in texts) == 1, "one makes it, the others wait", texts)
        (whole,) = (path.read_bytes() for path in (folder / "index").iterdir() if path.name.endswith(".index"))
        for delay in (0.0, 0.01, 0.02, 0.03, 0.05, 0.08):
            for path in (folder / "index").iterdir():
                path.unlink()
            with tessera(*words, folder=folder) as run:
                time.sleep(delay)
                run.process.send_signal(signal.SIGKILL)
                run.wait(10)
            tessera(*words, folder=folder).done(LIMIT)
            left = sorted(path.name for path in (folder / "index").iterdir())
            (again,) = (path.read_bytes() for path in (folder / "index").iterdir() if path.name.endswith(".index"))
            check(len(again) == len(whole), "the index after a kill", left)
        check(tree(folder / "data") == before, "the data folder is another")


@contextlib.contextmanager
def small_disk(place, size):
    place.mkdir()
    if os.getuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place],
                                          capture_output=True).returncode != 0:
        raise Skip("mounting a small disk is not allowed here")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def full_disk():
    """The disk of the index or of the packed data fills up: a warning, or one line; with room the same command goes on."""
    with scratch() as folder:
        source = many_files(folder / "data", 20000)
        good = f"folder:{make_image_folder(folder / 'good', 200)}"
        with small_disk(folder / "disk", "64k") as disk:
            text = tessera("data", "inspect", source, "--samples", 2, "--index-dir", disk, folder=folder).done(LIMIT)
            check("No space left on device" in text and "made anew at every start" in text, text)
            check(not [path for path in disk.iterdir() if path.stat().st_size > 0], list(disk.iterdir()))
            check_refused(tessera("data", "index", source, "--index-dir", disk, folder=folder), r"No space left on device")
            for form in ("wds", "zip", "tfrecord", "folder"):
                words = ("data", "pack", good, disk / form, "--to", form, "--name", "x")
                check_refused(tessera(*words, folder=folder), r"No space left on device.*free some space")
                subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
                tessera(*words, folder=folder).done(LIMIT)
                tessera("data", "pack", good, folder / form, *words[4:], folder=folder).done(LIMIT)
                found, wanted = ({path.relative_to(root): path.read_bytes() for path in sorted(root.rglob("*"))
                                  if path.is_file() and path.name != "pack.jsonl"} for root in (disk / form, folder / form))
                check(found == wanted, form, "other bytes after a full disk")
                subprocess.run(["rm", "-rf", disk / form], check=True)
                subprocess.run(["mount", "-o", "remount,size=64k", disk], check=True)


def the_limit_of_broken_samples():
    """1 % by default; each is named once and counted."""
    with scratch() as folder:
        source = images(folder / "data", {"x.jpg": b"<html>", "y.png": GOOD[0][:40]})
        keys = settings(data__source=source, train__batch=8, train__steps=4)
        check_refused(train(folder, "--procs", 2, *keys, run="limited"), r"2 of 18 samples are broken .*: expected at most 1 % \(data\.error_limit\)")
        text = train(folder, "--procs", 2, *keys, *settings(data__error_limit=0.5), run="borne").done(LIMIT)
        logs = [text, *(path.read_text() for path in (folder / "borne").rglob("rank-*.log"))]
        for name in ("x.jpg", "y.png"):  # by the rank that met it: how far each reads ahead decides which, or both
            counts = [len(re.findall(rf"train/n0/{re.escape(name)}", log)) for log in logs]
            check(sum(counts) >= 1 and max(counts) == 1, name, counts, *logs)
        check(summary(folder / "borne")["broken_train_samples"] == 2, summary(folder / "borne"))
        text = train(folder, *keys, *settings(data__error_limit=0.5, train__eval_every_steps=1), run="evaluated").done(LIMIT)
        for name in ("x.jpg", "y.png"):  # met by each of the four evaluations
            check(len(re.findall(rf"val/n0/{re.escape(name)}", text)) == 1, name, text)
        check(summary(folder / "evaluated")["broken_val_samples"] == 2, summary(folder / "evaluated"))


def refused_command_lines():
    """Numbers, names and places that cannot be: one short line each, before anything is made."""
    with scratch() as folder:
        source = images(folder / "data", {})
        before = tree(folder / "data")
        pack = ("data", "pack", source, folder / "out/in", "--to", "wds")
        for words, pattern in [
                ((*pack, "--max-bytes", "-5"), r"--max-bytes: value '-5' is invalid: expected a number of bytes above 0, such as 500MB"),
                ((*pack, "--max-bytes", "0"), r"--max-bytes: value '0' is invalid: expected a number of bytes above 0, such as 500MB"),
                ((*pack, "--max-samples", "0"), r"--max-samples: value '0' is invalid: expected a whole number of at least 1"),
                ((*pack, "--shuffle", "-1"), r"--shuffle: value '-1' is invalid: expected a whole number of at least 0"),
                ((*pack, "--workers", "x"), r"--workers: value 'x' is invalid: expected a whole number of at least 1"),
                ((*pack, "--name", "../x"), r"--name is '\.\./x': expected letters, digits and \. _ -"),
                (("data", "pack", source, "/proc/x", "--to", "wds"), r"cannot create the folder /proc/x: "),
                (("data", "index", source, "--index-dir", "/proc/x"), r"cannot create /proc/x: "),
                (("data", "index", source, "--splits", "train[:50%]"), r"--splits has 'train\[:50%\]': expected plain names, each once"),
                (("data", "inspect", source, "--full", "--html", "/nonexist/x.html"), r"cannot create /nonexist/x\.html"),
                (("data", "bench", source, "--threads", "-1"),
                 r"--threads: value '-1' is invalid: expected a whole number of at least 0"),
                (("data", "bench", "--imagenet-like", "0"),
                 r"--imagenet-like: value '0' is invalid: expected a whole number of at least 1")]:
            run = tessera(*words, folder=folder)
            check_refused(run, pattern)
            check("decoded" not in run.text() and "made anew" not in run.text(), run.text())
        check(tree(folder / "data") == before and not (folder / "out").exists(), "something was made")
        many = ("--workers", "100000")
        tessera("data", "pack", source, folder / "many", "--to", "zip", *many, folder=folder).done(LIMIT)
        tessera("data", "inspect", source, *many, folder=folder).done(LIMIT)
        tessera("data", "bench", source, "--threads", "100000", "--images", 16, "--rounds", 1, folder=folder).done(LIMIT)


if __name__ == "__main__":
    main(every_tool, read_only_data, several_at_once_and_killed, full_disk, the_limit_of_broken_samples,
         refused_command_lines)
