# SPDX-License-Identifier: Apache-2.0
"""What a run leaves behind, and what eval, predict and --help make of it."""
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import time

from files import make_image_folder
from harness import (PROGRAM, SOURCE, check, losses, main, rows, scratch, send, settings, summary, tessera, tiny_recipe,
                     train)

NUMBERS = ("val_top1", "val_loss", "train_seconds", "images_per_second", "steps", "world_size", "peak_rss_bytes",
           "parameters")
FILES = ("recipe.toml", "plan.json", "metrics.jsonl", "metrics.csv", "summary.json", "report.html", "checkpoints",
         "logs/rank-0.log", "logs/rank-1.log")


def folder_of_a_run():
    with scratch() as folder:
        text = train(folder, "--procs", 2).done()
        run = folder / "run"
        for name in FILES:
            check((run / name).exists(), name, "is missing")
            check(name == "checkpoints" or (run / name).stat().st_size > 0, name, "is empty")
        check(list(run.glob("tensorboard/events.out.tfevents.*")), "TensorBoard events are missing")

        found = summary(run)
        for name in NUMBERS:
            check(isinstance(found[name], (int, float)) and found[name] >= 0, name, found)
        check(found["steps"] == 6 and found["world_size"] == 2, found)
        check(20 << 20 < found["peak_rss_bytes"] < 4 << 30, found)
        check(os.path.exists(os.path.join(found["checkpoint"], "manifest.json")), found["checkpoint"])
        plan = json.loads((run / "plan.json").read_text())
        check(found["plan"] == plan and plan["world"] == 2 and len(plan["units"]) == 4, plan)

        saves = found["checkpoint_saves"]
        check(saves["saves"] > 0 and saves["stalled_seconds"] > 0 and saves["written_seconds"] > 0, saves)
        check(saves["copied_seconds"] == 0, "nothing is copied unless saves run beside the training", saves)

        check([step for step, _ in losses(run)] == [1, 2, 3, 4, 5, 6], losses(run))
        with open(run / "metrics.csv", newline="") as file:
            table = list(csv.DictReader(file))
        check(len(table) == 6 + len(rows(run, "eval")), table)
        check(float(table[0]["loss"]) == losses(run)[0][1], table[0])
        check(rows(run, "eval")[-1]["top1"] == found["val_top1"], found)

        for rank in (0, 1):
            log = (run / f"logs/rank-{rank}.log").read_text()
            for step in range(1, 7):
                check(re.search(rf"^\d{{4}}-\d\d-\d\d \S+ step {step}/6 ", log, re.M), f"rank {rank}, step {step}", log)
            check(f" saves: {saves['saves']}, training stood still for " in log, rank, log)
        report = (run / "report.html").read_text()
        check("<svg" in report and "http://" not in report.replace("http://www.w3.org/", ""), "not self-contained")
        for path in ("summary.json", "report.html"):
            check(str(run / path) in text, path, "is not named at the end", text)


def repeats_from_its_own_recipe():
    """The saved recipe.toml says all: training from it gives the same bits."""
    with scratch() as folder:
        train(folder, "--procs", 2, *settings(train__seed=7, optimizer__lr=3e-4)).done()
        train(folder, "--procs", 2, recipe=folder / "run/recipe.toml", run="again").done()
        check(losses(folder / "run") == losses(folder / "again"), "other losses")
        other = train(folder, "--procs", 2, *settings(train__seed=8, optimizer__lr=3e-4), run="other")
        other.done()
        check(losses(folder / "run") != losses(folder / "other"), "the seed changes nothing")


def resumes_best_and_a_step():
    """From a step and from the best checkpoint, the run goes on as it had done from there."""
    keys = settings(train__steps=8, checkpoint__every_steps=2, checkpoint__keep=10, train__eval_every_epochs=0.25)
    with scratch() as folder:
        train(folder, "--procs", 2, *keys).done()
        expected = losses(folder / "run")
        best = json.loads((folder / "run/checkpoints/best.json").read_text())["step"]
        for which, step in (("best", best), ("4", 4), ("step_00000002", 2)):
            shutil.copytree(folder / "run", folder / which)
            text = train(folder, "--procs", 2, "--resume", which, *keys, run=which).done()
            check(re.search(rf"resumed from .*/step_{step:08d}\b", text), which, text)
            check(losses(folder / which) == expected, which, losses(folder / which), expected)
        refused = train(folder, "--procs", 2, "--resume", "5", *keys)
        check(refused.wait(60) == 2 and re.search(r"has no checkpoint of step 5; name one of ", refused.text()), refused.text())


def resumes_the_newest_run_that_saved():
    """--resume passes over newer runs without a checkpoint, and never takes a pretended one."""
    with scratch() as folder:
        recipe = tiny_recipe(folder)
        tessera("train", recipe, folder=folder).done()
        begun = folder / "runs/tiny-2"
        (begun / "logs").mkdir(parents=True)
        (begun / "recipe.toml").write_text((folder / "runs/tiny/recipe.toml").read_text())
        text = tessera("train", recipe, "--pretend-world", 4, folder=folder).done()
        check(summary(folder / "runs/tiny-pretended")["pretended"], text)
        for procs in ((), ("--procs", 2)):
            steps = 9 + len(procs)
            text = tessera("train", recipe, "--resume", *procs, *settings(train__steps=steps), folder=folder).done()
            check(text.count("warning: --resume takes runs/tiny, the newest run with a complete checkpoint: "
                             "runs/tiny-2 has none") == 1, text)
            check(summary(folder / "runs/tiny")["steps"] == steps, text)
        refused = tessera("train", "--resume", "runs/tiny-pretended", folder=folder)
        check(refused.wait() == 2 and "runs/tiny-pretended holds a run of --pretend-world" in refused.text(), refused.text())


def starts_anew_beside_what_saved_nothing():
    """--resume of a run without a checkpoint keeps its metrics, with run.dir as in job scripts and without."""
    with scratch() as folder:
        recipe = tiny_recipe(folder)
        for procs, run_dir, words in (((), "runs/tiny", ()),
                                      (("--procs", 2), "run", settings(run__dir=folder / "run"))):
            words = ("train", recipe, *procs, *words)
            with tessera(*words, *settings(train__steps=1000000), folder=folder) as run:
                run.wait_for_step(3, folder / run_dir)
                run.kill()
            before = losses(folder / run_dir)
            text = tessera(*words, "--resume", "latest", folder=folder).done()
            kept = folder / run_dir / "earlier-1"
            check(f"/{run_dir}/checkpoints: starting anew" in text, text)
            check(text.count(f"what an earlier start left without a checkpoint is kept in {kept}\n") == 1, text)
            check(len(before) >= 3 and losses(kept) == before, "the metrics are kept", before)
            check([step for step, _ in losses(folder / run_dir)] == [1, 2, 3, 4, 5, 6], losses(folder / run_dir))
            check("steps = 1000000" in (kept / "recipe.toml").read_text(), "its recipe as well")
            text = tessera(*words, "--resume", "latest", folder=folder).done()
            check("earlier start" not in text and not (folder / run_dir / "earlier-2").exists(), text)


def listing(folder):
    """What lies in a folder, and when each was written."""
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


def ends_when_its_folder_is_removed():
    """Alone, on two ranks, with saves beside the training, with go_on and with restarts: one line, and nothing is made anew."""
    keys = settings(train__steps=1000000, checkpoint__every_steps=50)
    go_on = settings(checkpoint__on_failed_save="go_on", checkpoint__retries=3)
    asynchronous = settings(checkpoint__async="true")
    no_saves = settings(checkpoint__every_steps=0)
    for words in ((), ("--procs", 2), ("--procs", 2, *asynchronous, *go_on), ("--procs", 2, "--max-restarts", 2, *go_on),
                  ("--procs", 2, *no_saves)):
        with scratch() as folder, train(folder, *keys, *words) as run:
            run.wait_for_step(60, folder / "run")
            (folder / "run").rename(folder / "gone")  # in one moment, unlike rm -rf
            shutil.rmtree(folder / "gone")
            check(run.wait(60) == 2, words, run.tail())
            errors = [line for line in run.text().splitlines() if "error: " in line]
            check(len(errors) == 1 and errors[0].endswith(
                f"error: [train.run_folder] {folder}/run was removed or replaced while this run wrote into it: expected the folder to "
                "stay until the run ends; nothing more was written there; start the run again"), words, errors)
            check("--resume" not in run.text() and "state saved" not in run.text(), words, run.tail())
            check(not (folder / "run").exists(), words, listing(folder / "run"))
            run.check_nothing_left()


def leaves_the_run_alone_that_took_its_folder():
    keys = settings(checkpoint__every_steps=50, checkpoint__keep=1)
    with scratch() as folder, train(folder, "--procs", 2, *keys, *settings(train__steps=1000000)) as first:
        first.wait_for_step(30, folder / "run")
        for pid in first.ranks().values():
            send(pid, signal.SIGSTOP)  # it notices nothing before the other run is done
        shutil.rmtree(folder / "run")
        train(folder, "--procs", 2, *keys, *settings(train__steps=8)).done()
        before = listing(folder / "run")
        for pid in first.ranks().values():
            send(pid, signal.SIGCONT)
        check(first.wait(60) == 2 and "[train.run_folder]" in first.text(), first.tail())
        check(listing(folder / "run") == before, before, listing(folder / "run"))


def ends_when_its_checkpoint_dir_is_removed():
    with scratch() as folder, train(folder, "--procs", 2, *settings(
            train__steps=1000000, checkpoint__every_steps=50, checkpoint__dir=folder / "saved")) as run:
        run.wait_for_step(60, folder / "run")
        (folder / "saved").rename(folder / "gone")
        check(run.wait(60) == 2, run.tail())
        check(f"error: [train.checkpoint_dir] the folder of checkpoints {folder}/saved was removed or replaced" in run.text(), run.tail())
        check(not (folder / "saved").exists(), listing(folder / "saved"))


def resumes_a_finished_run():
    with scratch() as folder:
        tessera("train", tiny_recipe(folder), folder=folder).done()
        rate = summary(folder / "runs/tiny")["images_per_second"]
        check(rate > 0, rate)
        text = tessera("train", "--resume", "runs/tiny", folder=folder).done()
        check(summary(folder / "runs/tiny")["images_per_second"] == rate, "the rate of the steps that were made", rate)
        check(re.search(r"\n  trained for [\d.]+ s, before this start\n", text) and " images/s\n" not in text, text)
        check("this run is finished: all of its 6 steps are made (to train on, set train.steps above 6, for example "
              "--set train.steps=12)" in text, text)
        check("run.dir" not in text and "warning" not in text, "nothing differs", text)
        text = tessera("train", "--resume", "runs/tiny", "--set", "train.steps=12", folder=folder).done()
        check("finished:" not in text and "train.steps: 6 -> 12" in text, text)
        check([step for step, _ in losses(folder / "runs/tiny")] == list(range(1, 13)), "the steps go on")
        # A length below the checkpoint's step is refused, alone and on two ranks, and changes no file of the run.
        written = {name: (folder / "runs/tiny" / name).read_text() for name in ("recipe.toml", "summary.json", "metrics.jsonl")}
        for procs in ((), ("--procs", 2)):
            refused = tessera("train", "--resume", "runs/tiny", *procs, "--set", "train.steps=9", folder=folder)
            check(refused.wait(60) == 2, refused.tail())
            check("error: [train.resume] train.steps = 9 is less than 12, the step of the checkpoint: expected more than 12 steps; "
                  "undo the change of train.steps, or set train.steps to at least 13\n" in refused.text(), refused.tail())
            refused = tessera("train", "--resume", "runs/tiny", *procs, "--set", "train.epochs=0.5", folder=folder)
            check(refused.wait(60) == 2, refused.tail())
            check("train.epochs = 0.5 is 4 steps, but the checkpoint is at step 12: expected more than 12 steps; "
                  "undo the change of train.epochs, or set train.epochs to at least 2\n" in refused.text(), refused.tail())
            check(written == {name: (folder / "runs/tiny" / name).read_text() for name in written}, "files of the run changed")
        (folder / "runs/tiny/summary.json").unlink()
        tessera("train", "--resume", "runs/tiny", "--set", "train.steps=12", folder=folder).done()
        check(summary(folder / "runs/tiny")["images_per_second"] is None, "no process is known that made steps")


def says_what_is_odd_and_what_is_used():
    """A dry run and a start print levels as they are, groups with their numbers, and memory that can be compared."""
    with scratch() as folder:
        keys = settings(shard__units="blocks.0=replicate", schedule__warmup_steps=20,
                        optimizer__groups='["blocks.[0-5].*: freeze", "head.bias: weight_decay=0.1"]')
        for words in (("--dry-run",), ()):
            text = train(folder, *words, *keys).done()
            check("  layout: zero3 3 units, replicate 1 unit\n" in text, text)
            check('  group "blocks.[0-5].*: freeze": 24 parameters, blocks.0.norm1.weight to blocks.1.mlp.fc2.bias\n'
                  in text, text)
            check('  group "head.bias: weight_decay=0.1": 1 parameter, head.bias\n' in text, text)
            check("the warmup takes 20 steps and the run 6, so the learning rate ends at" in text, text)
            check(re.search(r"  expected process memory in progress lines: about [\d.]+ [MG]iB \([\d.]+ [MG]iB before "
                            r"training \+ [\d.]+ [MG]iB\)\n", text), text)


def eval_on_any_number_of_ranks():
    with scratch() as folder:
        # 250 images do not divide by 3 or 4 ranks.
        train(folder, "--procs", 2, *settings(data__source="fake:250", train__steps=12)).done()
        expected = summary(folder / "run")
        for ranks in (1, 2, 3, 4):
            words = ("eval", expected["checkpoint"], "--procs", ranks, "--json", "--output", f"eval-{ranks}.json")
            run = tessera(*words, folder=folder)
            run.done()
            found = json.loads((folder / f"eval-{ranks}.json").read_text())
            check(found["samples"] == 250 and found["compute"] == "fp32", ranks, found)
            check(found["top1"] == expected["val_top1"], ranks, "ranks:", found, expected["val_top1"])
            check(abs(found["loss"] - expected["val_loss"]) <= 1e-5 * expected["val_loss"], ranks, found)


def eval_names_its_dtype():
    with scratch() as folder:
        train(folder, *settings(train__steps=2)).done()
        for compute, named in (("fp32", "fp32"), ("bf16", "bf16")):
            text = tessera("eval", "run", "--set", f"precision.compute={compute}", folder=folder).done()
            check(re.search(rf"^top-1 .* images of val in .* s, computed in {named}$", text, re.M), text)


def eval_takes_a_length_of_zero():
    """timm's --epochs 0 asks for no training: an evaluation does not train, so there is nothing to refuse."""
    with scratch() as folder:
        train(folder, *settings(train__steps=2)).done()
        for key in ("train__epochs", "train__steps"):
            text = tessera("eval", "run", *settings(**{key: 0}), folder=folder).done()
            check(re.search(r"^top-1 .* images of val", text, re.M), text)
        run = tessera("eval", "run", "--set", "train.epochs=none", folder=folder)
        check(run.wait() == 2 and 'train.epochs is the text "none" (--set train.epochs=none): expected a number' in run.text(), run.text())


def predict_images():
    with scratch() as folder:
        photos = make_image_folder(folder / "photos")
        keys = settings(data__source=f"folder:{photos}", model__classes=2, train__batch=16, train__steps=30,
                        data__flip="false", data__crop="none")
        train(folder, *keys).done()
        check(summary(folder / "run")["val_top1"] > 90, "dark and light are easy:", summary(folder / "run"))
        images = [photos / "val/dark/007.png", photos / "val/light/007.png", photos / "val/light/000.jpg"]
        text = tessera("predict", folder / "run", *images, folder=folder).done()
        for image in images:
            check(re.search(rf"^{image}\n +[\d.]+ %  (dark|light)\n +[\d.]+ %  (dark|light)$", text, re.M), text)
        found = json.loads(tessera("predict", folder / "run", *images, "--json", folder=folder).done())
        check([entry["image"] for entry in found] == [str(image) for image in images], found)
        for entry, name in zip(found[:2], ("dark", "light")):
            check(entry["predictions"][0]["class"] == name, entry)
            check(abs(sum(one["probability"] for one in entry["predictions"]) - 1) < 1e-5, entry)

        train(folder, *settings(train__steps=2), run="ten").done()
        found = json.loads(tessera("predict", folder / "ten", images[0], "--json", folder=folder).done())
        chances = [one["probability"] for one in found[0]["predictions"]]
        check(len(chances) == 5 and chances == sorted(chances, reverse=True), "top 5", found)


def split_output(folder, *words, env=None):
    """Exit code, stdout, stderr."""
    with open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
        code = tessera(*words, folder=folder, env=env, stdout=out, stderr=err).wait()
    return code, (folder / "stdout").read_text(), (folder / "stderr").read_text()


def predict_folders_patterns_and_broken_files():
    with scratch() as folder:
        photos = make_image_folder(folder / "photos", images=4)
        train(folder, *settings(data__source=f"folder:{photos}", model__classes=2, train__batch=4, train__steps=2)).done()
        images = sorted(str(path) for path in (photos / "val").rglob("*") if path.suffix in (".png", ".jpg"))
        (photos / "val/.hidden.png").write_bytes(b"x")
        (photos / "val/notes.txt").write_text("x")
        code, out, err = split_output(folder, "predict", "run", photos / "val", "--csv")
        rows = list(csv.DictReader(out.splitlines()))
        check(code == 0 and list(rows[0]) == ["image", "rank", "class", "label", "probability", "error"], rows[:1])
        check(sorted({row["image"] for row in rows}) == images and len(rows) == 2 * len(images), rows)
        check(all(abs(float(a["probability"]) + float(b["probability"]) - 1) < 1e-5 and float(a["probability"]) >= 0.5
                  for a, b in zip(rows[::2], rows[1::2])), "two classes, the likelier one first", rows)
        check(re.search(r"^warning: .*left out 1 \.txt \(the first is .*notes\.txt\)$", err, re.M), err)
        pattern = str(photos / "val/*/*.png")
        code, out, _ = split_output(folder, "predict", "run", pattern, "--json")
        check(code == 0 and [one["image"] for one in json.loads(out)] == [name for name in images if name.endswith(".png")], out)

        broken = folder / "broken, \"quoted\".jpg"
        broken.write_bytes(b"no image")
        words = ("predict", "run", images[0], broken, folder / "missing.png", images[1])
        code, out, err = split_output(folder, *words, "--json")
        found = json.loads(out)
        check(code == 5, "some failed:", code)
        check([bool(one["predictions"]) for one in found] == [True, False, False, True], found)
        check(["error" in one for one in found] == [False, True, True, False] and "missing.png" in found[2]["error"], found)
        check("2 of 4 images were not predicted (exit code 5)" in err and err.count("warning: ") == 3, err)
        code, out, err = split_output(folder, *words, "--csv")
        rows = [row for row in csv.DictReader(out.splitlines()) if row["error"]]
        check(code == 5 and [row["image"] for row in rows] == [str(broken), str(folder / "missing.png")], rows)
        code, out, err = split_output(folder, *words)
        check(code == 5 and out.count("  not predicted\n") == 2 and out.count("%") == 4, out)
        code, out, err = split_output(folder, "predict", "run", broken, folder / "missing.png")
        check(code == 2 and "none of the 2 images could be read" in err, code, err)
        code, out, err = split_output(folder, "predict", "run", broken)
        check(code == 2 and err.startswith("error: "), code, err)
        (folder / "empty").mkdir()
        for words in ("empty", "no*match"):
            code, out, err = split_output(folder, "predict", "run", words)
            check(code == 2 and re.search(rf"no image in '{re.escape(words)}'", err), words, err)


def notes_beside_json():
    """What is said of foreign weights reaches stderr where stdout is for a result, and the result is the same."""
    with scratch() as folder:
        image = make_image_folder(folder / "photos") / "val/dark/000.jpg"
        words = ("predict", SOURCE / "tests/weights/fixtures/hf", image)
        _, text, nothing = split_output(folder, *words)
        note = next(line for line in text.splitlines() if line.startswith("weights: "))
        check(nothing == "", nothing)
        for form in ("--json", "--csv"):
            code, out, err = split_output(folder, *words, form)
            check(code == 0 and note in err.splitlines() and note not in out, form, out, err)


def short_commands_sleep_while_they_wait():
    """OpenMP's threads of `predict` do not spin, unless the environment says how they are to wait."""
    with scratch() as folder:
        image = make_image_folder(folder / "photos") / "val/dark/000.jpg"
        train(folder).done()
        shown = {"OMP_DISPLAY_ENV": "verbose"}
        for words, env, wanted in ((("predict", "run", image), {}, "PASSIVE"),
                                   (("predict", "run", image), {"OMP_WAIT_POLICY": "active"}, "ACTIVE"),
                                   (("eval", "run"), {}, None)):
            _, out, err = split_output(folder, *words, env={**shown, **env})
            policy = re.search(r"OMP_WAIT_POLICY = '(\w+)'", out + err)
            spins = re.search(r"GOMP_SPINCOUNT = '(\w+)'", out + err)
            check(policy and spins, "OpenMP says nothing:", out, err)
            if wanted:
                check(policy.group(1) == wanted, words, env, policy.group(0))
            check((int(spins.group(1)) == 0) == (wanted == "PASSIVE"), words, env, spins.group(0))


def threads_of_the_environment():
    with scratch() as folder:
        words = settings(run__threads=0, train__steps=1)
        text = train(folder, *words, env={"OMP_NUM_THREADS": "1"}).done()
        check(re.search(r"^  compute threads: 1, from OMP_NUM_THREADS \(", text, re.M) and ", 1 compute thread " in text, text)
        text = train(folder, *settings(run__threads=2, train__steps=1), run="own", env={"OMP_NUM_THREADS": "1"}).done()
        check("compute threads:" not in text and ", 2 compute threads " in text, text)
        run = train(folder, *words, run="bad", env={"OMP_NUM_THREADS": "all"})
        check(run.wait() == 2 and "OMP_NUM_THREADS is 'all'" in run.text(), run.text())


def predict_writes_out_control_characters():
    """Class names of a weights file from elsewhere must not reach the terminal as commands."""
    with scratch() as folder:
        weights, image = folder / "hf", make_image_folder(folder / "photos") / "val/dark/000.jpg"
        shutil.copytree(SOURCE / "tests/weights/fixtures/hf", weights)
        config = json.loads((weights / "config.json").read_text())
        config["id2label"] = {str(label): f"red\x1b[31m{label}" for label in range(5)}
        config["label2id"] = {name: int(label) for label, name in config["id2label"].items()}
        (weights / "config.json").write_text(json.dumps(config))
        text = tessera("predict", weights, image, folder=folder).done()
        check("\x1b" not in text and "red\\x1b[31m" in text, "not written out:", repr(text))


def help_is_instant():
    """Half of ten tries take less than 0.1 s, and the loader never looks at LibTorch."""
    times = []
    for _ in range(10):
        start = time.monotonic()
        text = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout
        times.append(time.monotonic() - start)
    check("tessera train recipes/quickstart.toml" in text, text)
    check(sorted(times)[5] < 0.1, times)
    loaded = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True,
                            env={**os.environ, "LD_DEBUG": "libs"}).stderr
    check("libtessera_core.so" in loaded, "the loader said nothing", loaded)
    check("libtorch" not in loaded and "libc10" not in loaded, "LibTorch was loaded", loaded)


def every_help_says_where_to_read_on():
    """The last line of every command's help names pages of the documentation that are there."""
    def visit(folder, words):
        text = tessera(*words, "--help", folder=folder).done()
        if words:
            pages = re.search(r"\n\nRead on: (docs/\S+\.md(?:, docs/\S+\.md)*)\.\n*$", text)
            check(pages, words, text)
            check(all((SOURCE / page).exists() for page in pages.group(1).split(", ")), words, text)
        listed = (text + "\nSubcommands:\n").split("\nSubcommands:\n")[1].split("\n\n")[0]
        return 1 + sum(visit(folder, [*words, name]) for name in re.findall(r"^  ([a-z][\w-]*) ", listed, re.M))

    with scratch() as folder:
        count = visit(folder, [])
        check(count > 20, "few commands were found:", count)


def parent_has_no_torch():
    """The parent of local ranks stays small: only the ranks map LibTorch."""
    with scratch() as folder, train(folder, "--procs", 2, *settings(train__steps=1000000)) as run:
        run.wait_for_step(2, folder / "run")
        for pid in (run.pid, *run.ranks().values()):
            with open(f"/proc/{pid}/maps") as maps:
                check(("libtorch_cpu" in maps.read()) == (pid != run.pid), "who maps LibTorch:", pid, run.pid)


def loads_no_library_from_the_working_directory():
    """Data folders hold files of other people; a library among them must not become part of the program."""
    with scratch() as folder:
        for name in ("libz.so.1", "libjpeg.so.62", "libstdc++.so.6", "libgomp.so.1", "libc10.so", "libtorch_cpu.so",
                     "libtessera_core.so"):
            (folder / name).write_text("no library")
        check("LibTorch 2." in tessera("--version", "--verbose", folder=folder).done(), "LibTorch was not loaded")


def version_has_number_and_commit():
    number = re.search(r"^project\(tessera VERSION (\S+)", (SOURCE / "CMakeLists.txt").read_text(), re.M)[1]
    with scratch() as folder:
        text = tessera("--version", folder=folder).done()
        check(re.fullmatch(rf"tessera {re.escape(number)} \(([0-9a-f]{{12,}}(-dirty)?|unknown)\)\n", text),
              "not the version:", text)


def version_for_a_bug_report():
    with scratch() as folder:
        text = tessera("--version", "--verbose", folder=folder).done()
        for word in ("tessera ", "LibTorch 2.", "cores ", "memory free", "built with", "-O", "Linux "):
            check(word in text, f"'{word}' is missing:", text)


if __name__ == "__main__":
    main(folder_of_a_run, repeats_from_its_own_recipe, resumes_best_and_a_step, resumes_the_newest_run_that_saved,
         starts_anew_beside_what_saved_nothing, ends_when_its_folder_is_removed, leaves_the_run_alone_that_took_its_folder,
         ends_when_its_checkpoint_dir_is_removed,
         resumes_a_finished_run, says_what_is_odd_and_what_is_used, eval_on_any_number_of_ranks, eval_names_its_dtype, eval_takes_a_length_of_zero, predict_images,
         predict_folders_patterns_and_broken_files, notes_beside_json, short_commands_sleep_while_they_wait,
         threads_of_the_environment,
         predict_writes_out_control_characters, help_is_instant, every_help_says_where_to_read_on, parent_has_no_torch,
         loads_no_library_from_the_working_directory, version_has_number_and_commit, version_for_a_bug_report)
