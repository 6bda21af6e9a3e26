# SPDX-License-Identifier: Apache-2.0
"""Wrong input of every kind: one clear line, exit 2, and nothing lost."""
import contextlib
import os
import re
import resource
import shutil
import signal
import socket
import subprocess

from files import make_idx_folder, make_image_folder
from harness import (SOURCE, Skip, check, checkpoints, main, no_core_dump, scratch, send, settings, summary, tessera, tiny_recipe,
                     train, verify)


def check_refused(run, pattern, code=2):
    """It ends with `code`, and one line of its output begins with error: and matches the pattern."""
    found = run.wait(60)
    check(found == code, f"exit {code} was expected:", found, run.words, run.tail())
    lines = [line for line in run.text().splitlines() if line.startswith("error: ")]
    check(any(re.search(pattern, line) for line in lines), f"'{pattern}' was expected", run.words, run.tail())
    check(len([line for line in lines if "[launch.local]" not in line]) == 1, "one error line", run.tail())


# Recipe keys -> what the error has to say.
KEYS = [
    (["model.widht=64"], r'there is no key "model\.widht" \(--set model\.widht=64\); did you mean "model\.width"\?$'),
    (["modle.width=64"], r'"modle.*did you mean "model'),
    (["train.batch=-3"], r"train\.batch is the integer -3 \(.*\): expected a value between 0 and 1e\+09$"),
    (["model.dropout=1.5"], r"model\.dropout is the number 1\.5 \(.*\): expected a value at least 0 and below 1$"),
    (["model.depth=99999999999999999999"], r"model\.depth is 9{20}, an integer beyond 64 bits \(.*\): expected an integer$"),
    (["optimizer=sgd"], r'"optimizer" is a table \(.*\): expected a key, such as optimizer\.name, '),
    (["train.batch=0"], r"train\.batch is 0, which means not given \(--set train\.batch=0\): expected train\.batch or train\.batch_per_rank above 0$"),
    (["train.steps=0"], r"train\.steps is 0, which means not given \(--set train\.steps=0\): expected train\.epochs or train\.steps above 0$"),
    (["model.depth=many"], r'model\.depth is the text "many" \(.*\): expected an integer$'),
    (["model.heads=5"], r"heads is 5, which does not divide width 32 \(--set model\.heads=5, \[model\]\): expected a divisor of width; nearest: 4 and 8$"),
    (["model.image_size=17"],
     r"image_size is 17 \(--set model\.image_size=17, \[model\]\): expected a multiple of patch_size \(8\); nearest: 16 and 24$"),
    (["model.preset=Ti16"], r'unknown model "Ti16" \(--set model\.preset=Ti16, model\.preset\): .*; did you mean "Ti/16"\?$'),
    (["run.device=gpu"], r'run\.device is "gpu" \(.*\): expected one of auto, cpu, cuda; did you mean "cuda"\?$'),
    (["train.batch=33", "train.batch_per_rank=4"],
     r"train\.batch is 33: expected a multiple of 2 ranks x batch_per_rank 4 = 8; nearest: 32 and 40; without train\.batch_per_rank any"),
    (["data.source=folder:/nowhere/at-all"],
     r"/nowhere/at-all does not exist: expected a folder of data; data\.source names it; set another: --set data\.source=folder:PATH$"),
    (["data.mix=folder:/nowhere/at-all"], r"/nowhere/at-all does not exist: .*; data\.mix names it; set another: --set data\.mix="),
    (["data.source=foldr:/tmp"], r"unknown kind 'foldr': expected one of .*; did you mean folder:/tmp\?$"),
    (["train.batch=512", "data.source=fake:300"], r"the training set has 300 images: expected at least one batch \(512 images\)"),
]


def recipe_keys():
    with scratch() as folder:
        for keys, pattern in KEYS:
            words = [word for key in keys for word in ("--set", key)]
            check_refused(train(folder, "--procs", 2, *words), pattern)
            check(not checkpoints(folder / "run"), keys, "wrote a checkpoint")


def arguments():
    with scratch() as folder:
        check_refused(tessera("train", folder=folder), r"neither a recipe nor --resume RUN_FOLDER is given")
        check_refused(tessera("train", "no.toml", folder=folder),
                      r"cannot open no\.toml: No such file or directory: expected a recipe file \(TOML\)$")
        tiny_recipe(folder)
        for words in (("train", "tyni.toml"), ("doctor", "tyni.toml")):
            check_refused(tessera(*words, folder=folder), r"cannot open tyni\.toml: .*; did you mean tiny\.toml\?$")
        (folder / "data/flowers/train").mkdir(parents=True)
        check_refused(tessera("train", "data/flowers", folder=folder),
                      r"data/flowers is a folder: expected a recipe file \(TOML\); name that folder in a recipe: data\.source = ")
        (folder / "quickstart").mkdir()
        check_refused(tessera("eval", "quikstart", folder=folder),
                      r"quikstart does not exist: expected a run's folder, .*; did you mean quickstart\?$")
        for words in (("train", "tiny.toml", "--set", "train.batch", "8"), ("train", "tiny.toml", "--set", "train.batch", "=", "8")):
            check_refused(tessera(*words, folder=folder), r"--set train\.batch has no value: write --set train\.batch=8 ")
        for text, mark in (('name = "x\n', '"'), ("name = 'x\n", "'"), ('name = "x', '"')):
            (folder / "quote.toml").write_text(text)
            check_refused(tessera("train", "quote.toml", folder=folder), rf"quote\.toml:1, column \d+: .*; is a closing {mark} missing\?$")
        for which in ("bset", "lastest"):
            run = train(folder, "--resume", which)
            check_refused(run, rf"--resume {which} names no checkpoint: expected latest, best, a step, .*did you mean (best|latest)\?$")
            check(run.text().count("\n") == 1 and not (folder / "run").exists(), "before anything else", run.tail())
        text = tessera("help", folder=folder).done()
        check("Start here:" in text and text == tessera("--help", folder=folder).done(), text)
        check(tessera("help", "data", "pack", folder=folder).done() == tessera("data", "pack", "--help", folder=folder).done())
        for words in (("checkpoint",), ("bench",), ("data",)):
            text = tessera(*words, "--help", folder=folder).done()
            check("Start here" not in text and "Read on: " in text, text)
        check_refused(tessera("trian", folder=folder), r"trian")
        check_refused(tessera("eval", "nowhere", folder=folder), r"nowhere")
        check_refused(tessera("data", "bench", folder=folder), r"neither SOURCE nor --imagenet-like is given: expected either")
        check_refused(tessera("data", "bench", "fake:9", "--imagenet-like", 9, folder=folder),
                      r"both SOURCE and --imagenet-like are given: expected either")
        (folder / "broken.toml").write_text("[model\nwidth = 3\n")
        check_refused(tessera("train", "broken.toml", folder=folder), r"broken\.toml.*1")
        launched = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2",
                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29876"}
        check_refused(train(folder, "--procs", 2, env=launched),
                      r"--procs is 2, but environment has already started 2 ranks: expected either --procs or a launcher; remove --procs$")
        check_refused(tessera("checkpoint", "inspct", folder=folder),
                      r"\[cli\] inspct is not a command of tessera checkpoint: expected one of inspect, .*; did you mean inspect\?")
        check_refused(tessera("bench", "foo", folder=folder),
                      r"\[cli\] foo is not a command of tessera bench: expected one of shard, step, scaling \(see tessera bench --help\)")
        check_refused(tessera("train", "--resume", "nowhere", folder=folder),
                      r"nowhere has no recipe\.toml: expected a recipe file or --resume RUN_FOLDER; name the folder of a run")
        for procs in (0, -1):
            refused = rf"--procs is {procs}: expected at least 1$"
            check_refused(tessera("eval", "nowhere", "--procs", procs, folder=folder), refused)
            check_refused(train(folder, "--procs", procs), refused)
            check_refused(tessera("doctor", tiny_recipe(folder), "--procs", procs, folder=folder), refused)
        for which in ("best", "latest", "40"):
            check_refused(tessera("train", "--resume", which, folder=folder),
                          rf"--resume {which} is given without a recipe: .*; tessera train RECIPE --resume {which}, or")
        check_refused(tessera("train", "--resume", folder=folder), r"--resume latest is given without a recipe")
        for words in (("eval", "nowhere"), ("predict", "nowhere", "a.jpg")):
            check_refused(tessera(*words, folder=folder), r"nowhere does not exist: expected a run's folder, a checkpoint's folder or a file of weights$")
            (folder / "vit.safetensors").write_bytes(b"x")
            check_refused(tessera(words[0], "vit.safetensors", *words[2:], folder=folder), r"vit\.safetensors")
        check_refused(tessera("data", "import", "imagenet", "--index-dir", "x", folder=folder),
                      r"\[cli\] --index-dir is not an option of tessera data import imagenet; did you mean --dali-index-dir\? "
                      r"\(see tessera data import imagenet --help\)")
        check_refused(tessera("train", "tiny.toml", "--proc=2", folder=folder),
                      r"\[cli\] --proc is not an option of tessera train; did you mean --procs\? \(see tessera train --help\)")
        check_refused(tessera("trian", "--procs", 2, folder=folder),
                      r"\[cli\] trian is not a command of tessera: expected one of train, .*; did you mean train\? \(see tessera --help\)")
        check_refused(train(folder, "--set", "model.preset=vit_huge"), r"model\.preset")
        for words in (("--resume=",), ("--resume", "")):
            check_refused(train(folder, *words), r"--resume has an empty value: .*; --resume alone means latest$")
        check(not (folder / "run").exists(), "an empty --resume began a run")
        check_refused(train(folder, "--fake-data=many"), r"data\.source is fake:many: expected fake:N with a number of images N from 1 to ")
        check_refused(tessera("checkpoint", "export", "nowhere", "o.safetensors", folder=folder),
                      r"nowhere does not exist: expected the folder of a run or of a checkpoint")
        check_refused(tessera("models", "nope", folder=folder), r"known: mu/16, .*resmlp_12_224")
        for words, wanted in ((("predict", "run"), r"images is missing: expected .+ \(see tessera predict --help\)"),
                              (("checkpoint", "export", "run"), r"output is missing: expected Safetensors file to write"),
                              (("train", "tiny.toml", "--procs", "abc"), r"--procs is abc: expected an integer"),
                              (("train", "tiny.toml", "--procs", "1.5"), r"--procs is 1\.5: expected an integer"),
                              (("train", "tiny.toml", "--expected-step", "nan"), r"--expected-step: value 'nan' is invalid"),
                              (("plan", "search", "tiny.toml", "--profile", "p", "--seconds", "nan"), r"--seconds: value 'nan' is invalid"),
                              (("plan", "search", "tiny.toml", "--profile", "p", "--show", "-1"), r"--show: value '-1' is invalid"),
                              (("data",), r"tessera data needs a command: expected one of inspect, ")):
            check_refused(tessera(*words, folder=folder), r"\[cli\] " + wanted)
        check_refused(train(folder, "--plan", "a.json", "--set", "parallel.plan=b.json"),
                      r"--plan a\.json and --set parallel\.plan=b\.json both name a plan: expected only one of them; remove one$")
        text = train(folder, "--trace", "100:200", "--dry-run", run="traced").done()
        check("the run ends at step" in text and "so no step is traced" in text, text)
        if not (SOURCE / "data/mnist").exists():
            check_refused(tessera("train", SOURCE / "recipes/mnist.toml", folder=folder, env={"MNIST": ""}),
                          r"set the environment variable MNIST, for which this is the default: MNIST=/data/mnist tessera train \S+mnist\.toml$")
        check_refused(tessera("bench", "step", "--model", "ViT-S", folder=folder), r'unknown model "ViT-S" \(.*; did you mean "S/16"\?$')
        check_refused(tessera("bench", "shard", "--procs", -1, folder=folder), r"--procs is -1: expected at least 1$")
        check_refused(tessera("bench", "scaling", "--strong", "--batch", 3, "--ranks", 2, folder=folder),
                      r"--batch is 3, which 2 ranks do not divide: expected a multiple of each of --ranks")
        check_refused(tessera("bench", "scaling", "--ranks", 0, folder=folder), r"--ranks is 0: expected at least 1$")
        for words, option in ((("checkpoint", "reshard", "run", "-o", ""), "--output"), (("checkpoint", "consolidate", "run", "-o", ""), "--output"),
                              (("checkpoint", "export", "run", ""), "output"), (("checkpoint", "convert", "run", ""), "OUT"),
                              (("train", "tiny.toml", "--plan", ""), "--plan"), (("trace", "run", "-o", ""), "--output"),
                              (("report", "run", "-o", ""), "--output"), (("bench", "step", "--output", ""), "--output"),
                              (("plan", "import", "pp_deg=1", "--recipe", "tiny.toml", "-o", ""), "--output"),
                              (("plan", "profile", "tiny.toml", "-o", ""), "--output"),
                              (("plan", "explain", "tiny.toml", "--profile", "p.json", "--plan", ""), "--plan"),
                              (("data", "inspect", "fake:9", "--html", ""), "--html")):
            check_refused(tessera(*words, folder=folder), rf"\[cli\] {option} is empty: expected .+ \(see tessera {words[0]} .*--help\)$")
        for words in (("models", "--ranks", 0), ("models", "--batch", -1), ("predict", "run", "a.jpg", "--top", "0"),
                      ("predict", "run", "a.jpg", "--top", "abc")):
            run = tessera(*words, folder=folder)
            check_refused(run, rf"\[cli\] {words[-2]}: .*{words[-1]} not in range")
            check(len(run.text()) < 300, "a message that can be read", run.tail())
        check_refused(tessera("train", "no\nrecipe.toml", folder=folder), r"cannot open no\\nrecipe\.toml")


# What ends a start before its first step -> what the error says.
FAILED_STARTS = [
    (["data.source=folder:/nowhere/at-all"], r"/nowhere/at-all does not exist"),
    (["train.batch=512"], r"at least one batch \(512 images\)"),
    (["model.width=14336", "model.depth=48", "model.heads=112", "model.mlp_width=57344"], r"the run does not fit this host"),
    (["optimizer.groups=[\"heads.*: freeze\"]"], r'has the entry "heads\.\*: freeze", which matches no parameter'),
    (["optimizer.groups=[\"blocks.[10-11].*: freeze\"]"], r"with \[10-11\], but brackets match a single character"),
    (["model.classes=5", "data.source=idx:{idx}"], r"classes: expected at most model\.classes \(5\)"),
]


def splits_that_overlap():
    """Trained on and evaluated by the same samples: refused on any ranks, unless a setting allows it."""
    with scratch() as folder:
        photos = make_image_folder(folder / "photos", images=10)
        tessera("data", "pack", f"folder:{photos}", folder / "wds", "--to", "wds", folder=folder).done()
        base = dict(model__classes=2, train__batch=4, train__steps=1)
        for source, val, common in ((f"folder:{photos}", "train", "20 of 20"), (f"wds:{folder}/wds", "train", "20 of 20"),
                                    (f"folder:{photos}", "train[50%:]", "6 of 10")):
            keys = settings(data__source=source, data__train="train[:80%]" if common == "6 of 10" else "train", data__val=val, **base)
            for procs in ((), ("--procs", 2), ("--dry-run",)):
                run = train(folder, *keys, *procs, run="refused")
                check_refused(run, rf'\[train\.data\] data\.val = "{re.escape(val)}" has {common} samples in common with data\.train = ')
                check(not (folder / "refused").exists(), "a run folder is left")
        text = train(folder, *keys, *settings(data__allow_overlap="true"), run="allowed").done()
        check("warning: [train.data] data.val = " in text and "6 of 10 samples in common" in text, text)
        keys = settings(data__source=f"folder:{photos}", data__train="train[:50%]", data__val="train[50%:]", **base)
        check("in common" not in train(folder, *keys, run="apart").done(), "halves that share nothing")


def dry_runs_open_what_the_run_opens():
    """What the start of the run would refuse, its dry run refuses in the same words, and writes nothing."""
    with scratch() as folder:
        train(folder).done()
        shutil.copytree(folder / "run", folder / "damaged")
        (checkpoints(folder / "damaged")[-1] / "manifest.json").write_text("{")
        (folder / "file").write_text("x")
        wide = settings(model__width=64)
        for words, pattern in ((settings(train__init_from=folder / "nowhere"), r"nowhere"),
                               (settings(train__init_from=folder / "damaged"), r"damaged"),
                               ([*settings(train__init_from=folder / "run"), *wide], r"the model's width is 64, but that of the weights is 32"),
                               (settings(distill__teacher=folder / "nowhere"), r"nowhere"),
                               (settings(distill__teacher=folder / "run", model__classes=12), r"classes"),
                               (settings(run__dir=folder / "run"), r"run already holds a run: expected a folder without a run"),
                               (settings(run__dir=folder / "file/run"), r"file/run"),
                               (settings(checkpoint__dir=folder / "run/checkpoints"), r"checkpoint")):
            real = train(folder, *words, run="other") if not any("run.dir" in str(word) for word in words) else \
                tessera("train", "tiny.toml", *words, folder=folder)
            check_refused(real, pattern)
            shutil.rmtree(folder / "other", ignore_errors=True)
            before = sorted(str(path) for path in folder.rglob("*") if path.suffix != ".out")
            dry = tessera("train", "tiny.toml", *words, "--dry-run", folder=folder)
            check_refused(dry, pattern)
            after = sorted(str(path) for path in folder.rglob("*") if path.suffix != ".out")
            check(before == after, "left behind:", set(after) ^ set(before))
        text = tessera("train", "tiny.toml", *settings(train__init_from=folder / "run", distill__teacher=folder / "run"), "--dry-run",
                       folder=folder).done()
        for pattern in (r"^initial weights from .*/run", r"^teacher: ", rf"^  run folder: {folder}/runs/tiny$"):
            check(re.search(pattern, text, re.M), pattern, text)
        text = tessera("train", "--resume", "run", "--dry-run", folder=folder).done()
        check(re.search(r"^  resumed from: .*step_00000006, step 6$", text, re.M), text)


def starts_that_fail():
    """They leave no run folder, alone or on two ranks; what they could know, --dry-run tells as well."""
    with scratch() as folder:
        recipe = tiny_recipe(folder)
        idx = make_idx_folder(folder / "idx")
        for keys, pattern in FAILED_STARTS:
            words = [word for key in keys for word in ("--set", key.format(idx=idx))]
            for procs in ((), ("--procs", 2)):
                check_refused(tessera("train", recipe, *procs, *words, folder=folder), pattern)
                check(not list(folder.glob("runs/*")), keys, procs, "left", list(folder.glob("runs/*")))
            if "does not fit" not in pattern:
                check_refused(tessera("train", recipe, "--dry-run", *words, folder=folder), pattern)
        check_refused(tessera("train", recipe, "--dry-run", "--rate", "nan", folder=folder), r"--rate: value 'nan' is invalid: expected a number between 1e-06 and 1e\+12 \(see tessera train --help\)$")
        run = train(folder, "--procs", 3, *settings(train__batch_per_rank=8), run="shared")
        check_refused(run, r"train\.batch is 32: expected a multiple of 3 ranks x batch_per_rank 8 = 24")
        check("[launch.local]" not in run.text().replace("warning: [launch.local]", ""), "before ranks start", run.tail())
        run = train(folder, "--procs", 2, *settings(train__batch=512), run="shared")
        check_refused(run, r"at least one batch")
        check(run.text().count("error: ") == 1 and "[launch.local]" not in run.text().replace("warning: [launch.local]", ""),
              "rank 0 has said it", run.tail())
        check(not (folder / "shared").exists() and "logs/rank" not in run.text(), "names a file that is gone", run.tail())
        (folder / "mine").mkdir()
        check_refused(train(folder, *settings(train__batch=512), run="mine"), r"at least one batch")
        check((folder / "mine").is_dir(), "what was there before stays")
        text = tessera("train", recipe, "--procs", 2, "--fake-data=64", folder=folder).done()
        check("data: fake:64: 64 " in text, text)
        check(summary(folder / "runs/tiny")["steps"] == 6, "the name is free")


def other_classes():
    """Evaluation on data whose class names are others is told; in another order it is refused."""
    with scratch() as folder:
        photos = make_image_folder(folder / "photos")
        keys = settings(data__source=f"folder:{photos}", model__classes=2, train__batch=16)
        text = train(folder, *keys).done()
        check("warning" not in text, text)
        other = folder / "other"
        shutil.copytree(photos, other)
        for split in ("train", "val"):
            (other / split / "light").rename(other / split / "white")
        evaluate = ("eval", "run", "--set", f"data.source=folder:{other}")
        wanted = r"warning: \[data\.classes\] .*label 1 is 'light' in the checkpoint and 'white' in the data"
        for json in ([], ["--json"]):
            text = tessera(*evaluate, *json, folder=folder).done()
            check(re.search(wanted, text), text)
        check("warning" not in tessera("eval", "run", folder=folder).done(), "the same classes")
        for split in ("train", "val"):
            shutil.rmtree(other / split / "dark")
            (other / split / "white").rename(other / split / "light")
        check_refused(tessera(*evaluate, folder=folder),
                      r"label 0 is 'dark' in the checkpoint and 'light' in the data, which is label 1 there")
        (other / "train/dark").mkdir()
        tessera(*evaluate, folder=folder).done()
        text = train(folder, *keys, *settings(model__classes=10), run="ten").done()
        check(re.search(r"model\.classes is 10, but .* has 2 classes, so 8 outputs belong to no class; set", text), text)
        (photos / "train/dark/list.txt").write_text("x")
        text = train(folder, *keys, run="listed").done()
        check(text.count("left out 1 .txt (the first is ") == 1, text)


def surroundings():
    """Streams that are closed or full, a working directory that is gone, a limit on files."""
    with scratch() as folder:
        whole = train(folder)
        whole.done()
        photos = make_image_folder(folder / "photos")
        photo = folder / os.fsdecode(b"q\xff.png")
        shutil.copy(photos / "train/dark/003.png", photo)
        for words in (("models",), ("options",), ("--help",), ("checkpoint", "inspect", "run"),
                      ("eval", "run", "--json"), ("predict", "run", photo, "--json")):
            with open("/dev/full", "wb") as full, open(folder / "err", "wb") as err:
                run = tessera(*words, folder=folder, stdout=full, stderr=err)
                check(run.wait(60) == 2, words, "into a full device")
            check(re.fullmatch(r"error: \[cli\] standard output did not take all that was printed.*\n",
                               (folder / "err").read_text()), words, (folder / "err").read_text())
        text = tessera("predict", "run", photo, "--json", folder=folder).done()
        check("q\ufffd.png" in text, "a name that is no UTF-8", text)
        for closed in range(3):
            run = train(folder, run=f"closed{closed}", preexec_fn=lambda: os.close(closed))
            check(run.wait(60) == 0, "with a stream closed", closed, run.tail())
            check((folder / f"closed{closed}/.lock").stat().st_size == 0, "what was printed went into the lock")
        gone = folder / "gone"
        gone.mkdir()
        run = tessera("models", folder=folder, preexec_fn=lambda: (os.chdir(gone), gone.rmdir()))
        check_refused(run, r"the working directory was removed; cd to another$")

        def limit():
            no_core_dump()
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

        run = tessera("checkpoint", "consolidate", "run", "-o", "large.safetensors", folder=folder, preexec_fn=limit)
        check_refused(run, r"large\.safetensors.*: File too large")
        check(not list(folder.glob("large*")), "a part was left", os.listdir(folder))
        check_refused(train(folder, run="limited", preexec_fn=limit), r"File too large")


def pipes_and_links():
    """What is no file: as a recipe, as an image, as an output."""
    with scratch() as folder:
        os.mkfifo(folder / "pipe")
        check_refused(tessera("train", "pipe", folder=folder), r"pipe is not a regular file$")
        train(folder).done()
        check_refused(tessera("predict", "run", "pipe", folder=folder), r"pipe is not a regular file$")
        (folder / "link").symlink_to("target")
        tessera("checkpoint", "consolidate", "run", "-o", "link", folder=folder).done()
        check((folder / "link").is_symlink() and (folder / "target").stat().st_size > 1000, os.listdir(folder))
        check_refused(tessera("checkpoint", "export", "run", "no_folder/", folder=folder),
                      r"cannot write no_folder/: it names a folder that does not exist; name a file$")
        checkpoint = checkpoints(folder / "run")[-1]
        check_refused(tessera("checkpoint", "reshard", "run", "-o", checkpoint, folder=folder),
                      r" is a checkpoint: expected a folder of checkpoints to write into")


def runs_that_are_there():
    """No other way to name a run's folder overwrites what it holds; what cannot be read is not taken for nothing."""
    with scratch() as folder:
        train(folder, run="finished").done()
        before = (folder / "finished/metrics.csv").read_bytes()
        for procs in ([], ["--procs", 2]):
            check_refused(train(folder, *procs, env={"TESSERA_RUN_DIR": str(folder / "finished")}),
                          r"TESSERA_RUN_DIR = .*/finished already holds a run: expected a folder without a run")
        for name in ("..", "../../escaped", str(folder / "absolute"), "x" * 300):
            check_refused(train(folder, *settings(name=name)), r"name is .*: expected the name of one folder")
        newest = checkpoints(folder / "finished")[-1]
        newest.rename(folder / "aside")
        newest.symlink_to(newest.name)  # to itself: it cannot be looked into
        for procs in ([], ["--procs", 2]):
            check_refused(train(folder, *procs, "--resume", run="finished"),
                          rf"cannot read .*/{newest.name}: .*nothing was changed")
        check((folder / "finished/metrics.csv").read_bytes() == before, "the metrics of the finished run")


def data_files():
    with scratch() as folder:
        (folder / "empty").mkdir()
        check_refused(train(folder, *settings(data__source=f"{folder}/empty")), r"/empty is empty: expected a folder of data")
        idx = make_idx_folder(folder / "idx")
        train(folder, *settings(data__source=f"idx:{idx}"), run="whole").done()
        images = idx / "train-images-idx3-ubyte.gz"
        images.write_bytes(images.read_bytes()[:-40])
        check_refused(train(folder, *settings(data__source=f"idx:{idx}")), 
                      r"train-images-idx3-ubyte\.gz is cut off: its data end after .*; fetch it again$")


def broken_images():
    """Two of 80 images are none: skipped with a count, or fatal, or too many of them."""
    with scratch() as folder:
        photos = make_image_folder(folder / "photos")
        (photos / "train/dark/003.png").write_bytes(b"this is no image")
        (photos / "train/light/004.png").write_bytes((photos / "train/light/005.png").read_bytes()[:60])
        keys = settings(data__source=f"folder:{photos}", train__batch=16, train__steps=5)
        text = train(folder, *keys, *settings(data__error_limit=0.5), run="skips").done()
        check("2 broken training samples were skipped" in text, text)
        check("003.png" in text, "the first broken image is named", text)
        check(summary(folder / "skips")["broken_train_samples"] == 2, "counted in the summary")
        text = train(folder, "--procs", 2, *keys, *settings(data__error_limit=0.5), run="skips2").done()
        check(summary(folder / "skips2")["broken_train_samples"] == 2, "each once, whoever finds it", text)
        failing = train(folder, "--procs", 2, *keys, *settings(data__on_error="fail"), run="fails")
        check_refused(failing, r"00[34]\.png")
        failing.check_nothing_left()
        for procs in ([], ["--procs", 2]):
            limited = train(folder, *procs, *keys, *settings(data__error_limit=0.001), run=f"limit{len(procs)}")
            check_refused(limited, r"2 of 80 samples are broken .*: expected at most 0\.1 % \(data\.error_limit\)")
            limited.check_nothing_left()


def damaged_checkpoints():
    with scratch() as folder:
        train(folder, "--procs", 2, *settings(checkpoint__every_steps=3)).done()
        older, newest = checkpoints(folder / "run")
        for output, pattern in (
                ("a.pth", r"a\.pth is named as a \.pth file, but safetensors would be written: expected a\.safetensors; Python loads"),
                ("nodir/a.safetensors", r"cannot create nodir/a\.safetensors: nodir does not exist: .*; make it first: mkdir -p nodir$")):
            check_refused(tessera("checkpoint", "export", "run", output, folder=folder), pattern)
            check(not (folder / output).exists(), output)
        check_refused(tessera("checkpoint", "verify", "rnu", folder=folder), r"rnu does not exist: .*; did you mean run\?$")
        shard = "shard-00001-of-00002.safetensors"

        def flip(path):
            content = bytearray((path / shard).read_bytes())
            content[-100] ^= 1
            (path / shard).write_bytes(content)

        for damage, pattern in (
            (lambda path: (path / "manifest.json").unlink(), rf"has no manifest\.json.*use {older.name}"),
            (lambda path: (path / shard).unlink(), rf"{shard} is missing .*use {older.name}"),
            (flip, rf"{shard} .*use {older.name}"),
        ):
            shutil.copytree(newest, folder / "sound")
            damage(newest)
            check_refused(tessera("eval", newest, folder=folder), pattern)
            check_refused(train(folder, "--procs", 2, "--resume", newest), pattern)
            verified = tessera("checkpoint", "verify", newest, folder=folder)
            check(verified.wait() == 2, verified.tail())
            tessera("checkpoint", "verify", older, folder=folder).done()
            shutil.rmtree(newest)
            (folder / "sound").rename(newest)
        (older / "manifest.json").rename(folder / "older.json")
        (newest / "manifest.json").rename(folder / "newest.json")
        for words in (("--resume", "latest"), ("--procs", 2, "--resume", "latest")):
            check_refused(train(folder, *words), r"checkpoint .*step_\d+ is incomplete: it has no manifest\.json, and there is no other checkpoint")
        check_refused(tessera("train", "--resume", folder / "run", folder=folder), r"checkpoint .*step_\d+ is incomplete: it has no")
        (folder / "older.json").rename(older / "manifest.json")
        (folder / "newest.json").rename(newest / "manifest.json")
        check_refused(train(folder, "--resume", "latest", *settings(model__width=64)),
                      r"does not match this model: param/pos_embed is \[1, 4, 32\] in the checkpoint, \[1, 4, 64\] in this run;")
        check(verify(folder / "run", folder) == 2, "the checkpoints stayed")
        check_refused(train(folder), r"/run already holds a run: expected a folder without a run; continue that run with --resume")
        shutil.rmtree(folder / "run/checkpoints")
        metrics = (folder / "run/metrics.jsonl").read_text()
        for words in ((), ("--procs", 2)):
            check_refused(tessera("train", "--resume", folder / "run", *words, folder=folder),
                          r"there is no checkpoint in .*/run/checkpoints, so the run cannot be continued; start anew with a recipe$")
        check((folder / "run/metrics.jsonl").read_text() == metrics, "the run's metrics stayed")


def numbers_that_end_a_run():
    """The error names the checkpoints that are there to go on from, and none that is not."""
    wild = settings(optimizer__lr=1000, optimizer__weight_decay=1000, schedule__warmup_steps=0, train__steps=40)
    for procs in ((), ("--procs", 2)):
        with scratch() as folder:
            check_refused(train(folder, *procs, *wild),
                          r"(the gradient of .*|the loss|the sum of .*) is not finite in step \d+ \(loss .*\); lower optimizer\.lr.*\(no checkpoint is saved: start anew\)")
            keys = settings(checkpoint__every_steps=4, train__steps=4)
            train(folder, *procs, *keys, run="saved").done()
            check_refused(train(folder, *procs, "--resume", *wild, run="saved"),
                          r"\(--resume goes on from step 4, the only checkpoint; start anew if that is ruined too\)")
            train(folder, *procs, "--resume", *keys, *settings(train__steps=8), run="saved").done()
            check_refused(train(folder, *procs, "--resume", *wild, run="saved"),
                          r"\(--resume goes on from step 8; if that is ruined too, --resume 4 from an earlier one\)")


@contextlib.contextmanager
def small_disk(folder):
    """A file system of 8 MiB."""
    if os.getuid() != 0:
        raise Skip("mounting a small disk needs root")
    disk = folder / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True).returncode != 0:
        raise Skip("mounting a tmpfs is not allowed here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def fill(disk):
    with contextlib.suppress(OSError), open(disk / "filler", "wb") as filler:
        while True:
            filler.write(bytes(1 << 16))
            filler.flush()


def full_disk():
    """The disk fills up while a run saves: the save is tried again, then the run ends, and the older checkpoints stay sound."""
    with scratch() as folder, small_disk(folder) as disk:
        with train(folder, "--procs", 2, run="disk/run",
                   *settings(train__steps=1000000, train__eval_every_epochs=0, checkpoint__every_steps=5, checkpoint__retries=1)) as run:
            run.wait_for(lambda: len(checkpoints(disk / "run")) >= 2, "two checkpoints")
            fill(disk)
            check_refused(run, r"\[checkpoint\.save\].*No space left on device.*older checkpoints are untouched")
            check(run.text().count("; trying again in 1 s") == 1, run.tail())
            run.check_nothing_left()
        check(verify(disk / "run", folder) >= 1, "older checkpoints")


def disk_that_is_full_for_a_while():
    """With checkpoint.on_failed_save = "go_on" the run outlives it, in the training thread and beside it, and saves again later."""
    for beside in ("false", "true"):
        with scratch() as folder, small_disk(folder) as disk:
            with train(folder, "--procs", 2, *settings(train__steps=1000000, train__eval_every_epochs=0, checkpoint__every_steps=5, checkpoint__retries=0,
                                                       checkpoint__on_failed_save="go_on", checkpoint__async=beside, checkpoint__dir=disk / "saved")) as run:
                run.wait_for(lambda: len(checkpoints(folder / "run")) >= 2, "two checkpoints")
                fill(disk)
                run.wait_for_text('; training goes on (checkpoint.on_failed_save = "go_on")')
                (disk / "filler").unlink()
                known = set(checkpoints(folder / "run"))
                run.wait_for(lambda: set(checkpoints(folder / "run")) - known, "another checkpoint")
                send(run.pid, signal.SIGTERM)
                check(run.wait(60) == 0, run.tail())
            check(verify(folder / "run", folder) >= 1, "sound checkpoints")


def port_in_use():
    with scratch() as folder, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        environment = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        check_refused(train(folder, env=environment), rf"port {port} for the rendezvous is in use; choose another MASTER_PORT")


def meeting_point():
    """Rank 1 cannot reach rank 0: one line each, without LibTorch's stack traces."""
    rank = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    with scratch() as folder:
        run = train(folder, *settings(run__timeout=1), env=rank)
        check_refused(run, r"rank 0 at 127\.0\.0\.1:1 within 1 s: nothing accepts connections there", code=3)
        check("frame #" not in run.text() and "c10d" not in run.text(), run.tail())
        run = train(folder, env={**rank, "MASTER_ADDR": "no..such"})
        check_refused(run, r"cannot resolve no\.\.such, the host of rank 0: .*check MASTER_ADDR")
        check("frame #" not in run.text(), run.tail())
        run = train(folder, "--procs", 2, *settings(run__timeout="1e-9"))
        # Ranks that always find the others there already never wait, and end well.
        check(run.wait() in (0, 3) and "frame #" not in run.text() and ".cpp:" not in run.text(), run.tail())


def few_open_files():
    for most in (24, 64):
        with scratch() as folder:
            run = train(folder, "--procs", 4,
                        preexec_fn=lambda most=most: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)))
            check_refused(run, rf"the limit of open files and sockets is {most}: expected at least \d+ in each rank; raise it: ulimit -n \d+$")


def too_many_threads():
    with scratch() as folder:
        most = max(64, 16 * len(os.sched_getaffinity(0)))
        if most < 4096:
            check_refused(train(folder, *settings(run__threads=4096)), rf"run\.threads is 4096: expected at most {most} on the ")
        text = train(folder, *settings(run__threads=len(os.sched_getaffinity(0)) + 1)).done()
        check(re.search(r"warning: .*run\.threads = \d+ is more than the \d+ cores? a rank has", text), text)


def bench_that_does_not_fit():
    with scratch() as folder:
        big = ("bench", "shard", "--model", "10B", "--procs", 2, "--batch", 1000)
        run = tessera(*big, folder=folder)
        check_refused(run, r"the run does not fit this host: 2 ranks are predicted to need [\d.]+ [TG]iB, but .* are free")
        check("--force" not in run.text(), run.tail())
        check_refused(tessera("bench", "shard", "--batch", 0, folder=folder), r"--batch is 0: expected at least 1$")


def more_ranks_than_cores():
    with scratch() as folder:
        cores = len(os.sched_getaffinity(0))
        ranks = min(2 * cores, 8)
        if ranks <= cores:
            raise Skip(f"{cores} cores are more than this test starts ranks")
        text = train(folder, "--procs", ranks, *settings(train__steps=2)).done(120)
        check(re.search(rf"warning: .*{ranks} ranks share {cores} core", text), text)
        check(summary(folder / "run")["world_size"] == ranks, text)


def out_of_memory():
    """One rank may not have what a step needs: one line says rank, step, unit, bytes, and what would save how much."""
    def limit():
        no_core_dump()
        resource.setrlimit(resource.RLIMIT_AS, (1_600 << 20, 1_600 << 20))

    with scratch() as folder:
        keys = settings(train__batch=4096, data__source="fake:4096", model__image_size=64, data__prefetch=1)
        check_refused(train(folder, *keys, preexec_fn=limit),
                      r"out of memory on rank 0/1, after step 0, unit \S+, wanting [\d.]+ [KMG]iB.*"
                      r"shard\.recompute = true would save [\d.]+ [KMG]iB; half the batch per rank would save")


HUGE = """
name = "huge"
[model]
preset = "120B/14"
[train]
batch = 1024
steps = 1
[precision]
compute = "fp32"
"""


def predicted_memory():
    """A run that cannot fit is refused before its first step; nothing of it is built."""
    with scratch() as folder:
        recipe = tiny_recipe(folder, HUGE)
        run = train(folder, "--fake-data", recipe=recipe)
        check_refused(run, r"the run does not fit this host: 1 rank is predicted to need [\d.]+ TiB, but .* are free; "
                           r"most of it is activations, [\d.]+ TiB a rank; .*shard\.recompute = true would save.*"
                           r"half the batch per rank would save.*; none of these changes is enough alone \(.*--force")
        check("step 1" not in run.text() and not checkpoints(folder / "run"), run.tail())


def force():
    """What is predicted not to fit is tried with --force, and then it is the system that says no."""
    def limit():
        no_core_dump()
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    with scratch() as folder:
        recipe = tiny_recipe(folder, HUGE)
        run = train(folder, "--fake-data", "--force", *settings(model__depth=1), recipe=recipe, preexec_fn=limit)
        check_refused(run, r"out of memory on rank 0/1, .*while building the model")
        check("does not fit this host" not in run.text(), run.tail())


def another_torch():
    """A LibTorch in LD_LIBRARY_PATH does no harm; one that TESSERA_TORCH_DIR names must be right."""
    with scratch() as folder:
        for name in ("libtorch_cpu.so", "libc10.so", "libgomp.so.1"):
            (folder / name).symlink_to("/etc/hostname")
        text = tessera("--version", "--verbose", folder=folder, env={"LD_LIBRARY_PATH": str(folder)}).done()
        check(re.search(r"^LibTorch \S+ from \S+/torch/lib/libtorch_cpu\.so$", text, re.M), text)
        check_refused(train(folder, env={"TESSERA_TORCH_DIR": str(folder)}),
                      rf"TESSERA_TORCH_DIR is '{folder}', which has no lib/libtorch_cpu\.so: expected the folder of the torch package")
        (folder / "lib").mkdir()
        (folder / "lib/libtorch_cpu.so").symlink_to("/etc/hostname")
        (folder / "version.py").write_text("__version__ = '2.10.0+cpu'\n")
        check_refused(train(folder, env={"TESSERA_TORCH_DIR": str(folder)}), r"holds torch 2\.10\.0: expected torch 2\.")
        tessera("models", folder=folder, env={"TESSERA_TORCH_DIR": str(folder)}).done()  # needs no LibTorch


if __name__ == "__main__":
    main(recipe_keys, arguments, starts_that_fail, splits_that_overlap, dry_runs_open_what_the_run_opens, other_classes, surroundings, pipes_and_links,
         runs_that_are_there, data_files, broken_images, damaged_checkpoints, numbers_that_end_a_run, full_disk, disk_that_is_full_for_a_while, port_in_use, meeting_point, few_open_files, too_many_threads,
         bench_that_does_not_fit, more_ranks_than_cores, out_of_memory, predicted_memory, force, another_torch)
