# SPDX-License-Identifier: Apache-2.0
"""`tessera data`: pack, import, inspect and index from the command line; refusals are one line and exit 2."""
import json
import os
import pathlib
import re
import signal
import tarfile
import time
import zipfile

from files import make_image_folder, png
from harness import SOURCE, check, main, scratch, tessera

FIXTURE = SOURCE / "tests/prepare/fixtures/imagenet"


def call(folder, *words, code=0):
    run = tessera("data", *words, folder=folder, env={"XDG_CACHE_HOME": str(folder / "cache")})
    found = run.wait(60)
    check(found == code, f"exit {code} was expected:", found, run.words, run.tail())
    return run.text()


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*"))
            if path.is_file() and path.name != "pack.jsonl"}


def packs_and_reads_back():
    with scratch() as folder:
        source = f"folder:{make_image_folder(folder / 'images')}"
        text = call(folder, "pack", source, folder / "wds", "--to", "wds", "--max-samples", 30, "--shuffle", 1)
        check("train: 80 samples, " in text and "val: 80 samples, " in text and f"wrote {folder}/wds" in text, text)
        with tarfile.open(folder / "wds/train-000002.tar") as shard:
            check(len(shard.getnames()) == 2 * 20, shard.getnames())
        check("is complete: an earlier run" in call(folder, "pack", source, folder / "wds", "--to", "wds",
                                                    "--max-samples", 30, "--shuffle", 1))
        call(folder, "pack", f"wds:{folder}/wds", folder / "back", "--to", "folder", "--index-dir", "none")
        images = sorted(content(folder / "images").values())
        check(sorted(content(folder / "back").values()) == images, "other images came back")
        found = json.loads(call(folder, "inspect", f"folder:{folder}/back", "--full", "--json"))
        check(found["samples"] == 80 and found["broken"] == [] and found["full"], found)
        check([entry["samples"] for entry in found["classes"]] == [40, 40], found)


def numeric_folders_keep_their_classes():
    """A zip without a map of class folders 0 to 11, packed back into folders: every image stays in its folder."""
    with scratch() as folder:
        names = [str(number) for number in range(12)]
        for split in ("train", "val"):
            (folder / "zip").mkdir(exist_ok=True)
            with zipfile.ZipFile(folder / "zip" / f"{split}.zip", "w") as archive:
                for name in names:
                    archive.writestr(f"{name}/x.png", png(8, lambda x, y, name=name: 20 * int(name)))
        text = call(folder, "pack", f"zip:{folder}/zip", folder / "back", "--to", "folder")
        check("class folders are sorted by bytes, not by number: folder '10' has label 2" in text, text)
        for split in ("train", "val"):
            check(sorted(os.listdir(folder / "back" / split)) == sorted(names), os.listdir(folder / "back" / split))
            for name in names:
                found = [path.read_bytes() for path in (folder / "back" / split / name).iterdir()]
                check(found == [png(8, lambda x, y, name=name: 20 * int(name))], split, name)


def a_killed_pack_goes_on():
    with scratch() as folder:
        source = f"folder:{make_image_folder(folder / 'images', 400)}"
        words = ["pack", source, folder / "killed", "--to", "tfrecord", "--max-samples", 50, "--name", "x"]
        for delay in (0.02, 0.05, 0.1):
            run = tessera("data", *words, folder=folder, env={"XDG_CACHE_HOME": str(folder / "cache")})
            time.sleep(delay)
            run.process.send_signal(signal.SIGKILL)
            run.wait(10)
        call(folder, *words)
        words[2] = folder / "whole"
        call(folder, *words)
        check(content(folder / "killed") == content(folder / "whole"), "a killed run ends with other bytes")


def imports_imagenet():
    with scratch() as folder:
        call(folder, "import", "imagenet", "--train", FIXTURE / "img_train.tar", "--val", FIXTURE / "img_val.tar",
             "--devkit", FIXTURE / "devkit_t12.tar.gz", folder / "zip", "--to", "zip")
        lines = (folder / "zip/val_map.txt").read_text().splitlines()
        check(lines[1] == "n02119789/ILSVRC2012_val_00000002.JPEG\t2", lines)
        check(len((folder / "zip/train_map.txt").read_text().splitlines()) == 10)


def inspects_with_pictures():
    with scratch() as folder:
        images = make_image_folder(folder / "images")
        (images / "train/dark/001.png").write_bytes((images / "train/dark/001.png").read_bytes()[:-30])
        text = call(folder, "inspect", f"folder:{images}", "--html", folder / "page.html")
        check(re.search(r"broken   1\n  train/dark/001\.png: \[formats\.decode_png\] cannot decode the PNG image ", text), text)
        page = (folder / "page.html").read_text()
        check(page.count("<img ") >= 16 and "001.png" in page and "://" not in page, "the page lacks something")


def indexes_ahead():
    with scratch() as folder:
        source = f"folder:{make_image_folder(folder / 'images')}"
        call(folder, "pack", source, folder / "wds", "--to", "wds")
        words = ("index", f"wds:{folder}/wds", "--index-dir", folder / "index")
        made, found = call(folder, *words), call(folder, *words)
        check(made.count("80 samples in 2 classes, ") == 2 and "made in" in made, made)
        check("fits the data" in found and "made in" not in found, found)
        check(not any("index" in name for name in content(folder / "wds")), "something was written beside the data")


def words_of_refusal():
    with scratch() as folder:
        images = make_image_folder(folder / "images")
        source = f"folder:{images}"
        for words, pattern in (
                ([], r"\[cli\] tessera data needs a command: expected one of inspect, "),
                (["pack", source, folder / "x", "--to", "webds"], r"\[prepare\.form\] .*did you mean wds\?"),
                (["pack", source, folder / "x", "--to", "zip", "--max-samples", 5],
                 r"\[cli\.data_pack\] --max-bytes and --max-samples have no effect with --to zip: expected a form of shards \(--to wds or tfrecord\)"),
                (["pack", source, folder / "x", "--to", "zip", "--dali-index"], r"have no effect with --to zip: expected --to wds"),
                (["pack", source, folder / "x", "--to", "zip", "--splits", "train,train"],
                 r"--splits has 'train': expected plain names, each once"),
                (["pack", source, images, "--to", "folder"],
                 r"\[prepare\.journal\] .* has (train|val): expected an empty folder, or one that the same command began to fill"),
                (["pack", "folder:/nowhere", folder / "x", "--to", "zip"], r"/nowhere does not exist"),
                (["import", "imagenet", "--to", "zip", folder / "x"], r"\[cli\.data_import\] neither --train nor --val is given"),
                (["import", "imagenet", "--val", FIXTURE / "img_val.tar", "--to", "zip", folder / "x"],
                 r"--val is given without --devkit")):
            text = call(folder, *words, code=2)
            check(len([line for line in text.splitlines() if line.startswith("error: ")]) == 1, text)
            check(re.search(pattern, text), pattern, text)
            check(not pathlib.Path(folder / "x").exists(), "a refused command leaves a folder", words)


def help_teaches():
    with scratch() as folder:
        check("tessera data inspect" in call(folder, "--help"))
        for tool in ("pack", "inspect", "index"):
            check(f"tessera data {tool} " in call(folder, tool, "--help"))
        check("ILSVRC2012_devkit_t12.tar.gz" in call(folder, "import", "imagenet", "--help"))


main(packs_and_reads_back, numeric_folders_keep_their_classes, a_killed_pack_goes_on, imports_imagenet,
     inspects_with_pictures, indexes_ahead, words_of_refusal, help_teaches)
