# SPDX-License-Identifier: Apache-2.0
"""What a run lets one see: an evaluation's folder, where two runs part, a trace, and what `doctor` says beforehand."""
import csv
import json
import os
import re
import shutil
import signal
import struct

from files import make_image_folder
from harness import (PROGRAM, Run, check, free_port, main, rows, scratch, send, settings, summary, tessera, tiny_recipe, train)


def eval_leaves_the_same_folder_on_any_ranks():
    with scratch() as folder:
        photos = make_image_folder(folder / "photos")
        train(folder, *settings(data__source=f"folder:{photos}", model__classes=2, train__batch=16, train__steps=3)).done()
        expected = summary(folder / "run")
        found = {}
        for ranks in (1, 3):
            out = folder / f"results-{ranks}"
            text = tessera("eval", folder / "run", "--procs", ranks, "--output-dir", out, "--mistakes", 5, folder=folder).done()
            check(str(out / "report.html") in text, text)
            found[ranks] = json.loads((out / "metrics.json").read_text())
            check(found[ranks]["samples"] == 80 and found[ranks]["top1"] == expected["val_top1"], found, expected)
            check(sum(one["samples"] for one in found[ranks]["calibration"]) == 80, found)
            with open(out / "per_class.csv", newline="") as file:
                classes = list(csv.DictReader(file))
            check([row["name"] for row in classes] == ["dark", "light"], classes)
            check(all(int(row["samples"]) == 40 for row in classes), classes)
            right = sum(int(row["correct"]) for row in classes)
            check(abs(right / 0.8 - found[ranks]["top1"]) < 1e-9, right, found)
            with open(out / "confusion.csv", newline="") as file:
                confusion = list(csv.reader(file))
            check(confusion[0] == ["truth", "dark", "light"], confusion)
            check(int(confusion[1][1]) + int(confusion[2][2]) == right, confusion)
            with open(out / "mistakes.csv", newline="") as file:
                mistakes = list(csv.DictReader(file))
            check(len(mistakes) == min(5, 80 - right), mistakes)
            check(all(row["truth"] != row["prediction"] and "val/" in row["name"] for row in mistakes), mistakes)
            page = (out / "report.html").read_text()
            check(page.count("data:image/png;base64,") == len(mistakes) and "http://" not in page, "the page")
        for name in ("per_class.csv", "confusion.csv"):
            one, three = ((folder / f"results-{ranks}" / name).read_text() for ranks in (1, 3))
            check(one == three, name, one, three)
        check(abs(found[1]["ece"] - found[3]["ece"]) < 1e-3, found)
        more = make_image_folder(folder / "more")
        for split in ("train", "val"):
            shutil.copytree(more / split / "light", more / split / "third")
        run = tessera("eval", folder / "run", "--set", f"data.source=folder:{more}", folder=folder)
        check(run.wait() == 2 and " classes and the model 2 outputs: expected data of at most 2 classes" in run.text(), run.text())
        run = tessera("eval", folder / "run", "--output-dir", folder / "run/recipe.toml/x", folder=folder)
        check(run.wait() == 2 and "[monitor.evaluation] cannot create folder " in run.text(), run.text())


def safetensors_header(path):
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(size))


def sample_names(path):
    """The names in a file of features, with the standard library alone."""
    raw = path.read_bytes()
    size, = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + size])
    bytes_of = lambda name: raw[8 + size:][slice(*header[name]["data_offsets"])]
    ends = struct.unpack(f"<{header['name_offsets']['shape'][0]}q", bytes_of("name_offsets"))
    return [os.fsdecode(bytes_of("names")[begin:end]) for begin, end in zip(ends, ends[1:])]


def eval_looks_at_frozen_features():
    with scratch() as folder:
        photos = make_image_folder(folder / "photos")
        train(folder, *settings(data__source=f"folder:{photos}", model__classes=2, train__batch=16, train__steps=3)).done()
        found = {}
        for ranks in (1, 2):
            out = folder / f"features-{ranks}.safetensors"
            run = tessera("eval", folder / "run", "--procs", ranks, "--features", out, "--units", "blocks.0,head", "--knn", 5,
                          "--probe", "--output", folder / "out.json", folder=folder).done()
            header = safetensors_header(out)
            check(header["__metadata__"] == {"format": "pt", "compute": "fp32"}, header["__metadata__"])
            check(sample_names(out) == [f"val/{name}/{i:03d}.{'png' if i else 'jpg'}" for name in ("dark", "light")
                                        for i in range(40)], sample_names(out))
            shapes = {name: header[name]["shape"] for name in ("features", "labels", "blocks.0", "head")}
            check(shapes == {"features": [80, 32], "labels": [80], "blocks.0": [80, 4, 32], "head": [80, 2]}, shapes)
            found[ranks] = json.loads((folder / "out.json").read_text())
            # Dark and light pictures: a line between their features is enough.
            check(found[ranks]["probe_top1"] > 95 and found[ranks]["knn_top1"] > 95, found)
            check("linear probe: top-1" in run and "5 nearest neighbours: top-1" in run, run)
        check(found[1]["probe_top1"] == found[2]["probe_top1"], found)
        # float32 though the run computes in bf16, unless another dtype is asked for.
        bf16 = ("--set", "precision.compute=bf16")
        train(folder, *settings(data__source=f"folder:{photos}", model__classes=2, train__batch=16, train__steps=1,
                                precision__compute="bf16"), run="bf16").done()
        for words, dtype in (((), "bf16"), (("--features", out), "fp32"), (("--features", out, *bf16), "bf16")):
            out.unlink(missing_ok=True)
            run = tessera("eval", folder / "bf16", *words, folder=folder).done()
            check(f"computed in {dtype}" in run, words, run)
            check(not words or safetensors_header(out)["__metadata__"]["compute"] == dtype, words)
            check(not words or safetensors_header(out)["features"]["dtype"] == "F32", words)
        run = tessera("eval", folder / "run", "--units", "blocks.9", "--features", out, folder=folder)
        check(run.wait() == 2 and "[train.features] the model has no unit " in run.text() and ": expected one of stem, blocks.0, " in run.text(), run.text())


def compare_says_where_runs_part():
    with scratch() as folder:
        train(folder, run="a").done()
        train(folder, run="b").done()
        train(folder, *settings(optimizer__lr=3e-3), run="c").done()
        text = tessera("compare", "a", "b", folder=folder).done()
        check("they never part by more than 0" in text and "recipe keys that differ" not in text, text)
        found = json.loads(tessera("compare", "a", "c", "--json", folder=folder).done())
        check(found["parted"]["column"] == "learning_rate" and found["parted"]["kind"] == "step", found["parted"])
        check(any("optimizer.lr: 0.001 -> 0.003" in line for line in found["recipe"]), found["recipe"])
        # What the program tells its own ranks differs between any two starts; what the user sets does not.
        for name, threads in (("two", 1), ("again", 2)):
            train(folder, "--procs", 2, run=name, env={"OMP_NUM_THREADS": str(threads)}).done()
        listed = json.loads(tessera("compare", "two", "again", "--json", folder=folder).done())["environment"]
        check(any("OMP_NUM_THREADS" in line for line in listed), listed)
        check(not any("TESSERA_MASTER" in line or "TESSERA_RUN_" in line for line in listed), listed)
        loss = next(one for one in found["columns"] if one["column"] == "loss" and one["kind"] == "step")
        check(loss["rows"] == 6 and loss["parted"] is not None, loss)
        curve = folder / "curve.csv"
        curve.write_text("step,loss\n" + "".join(f"{row['step']},{row['loss'] * 1.0005}\n" for row in rows(folder / "a")))
        text = tessera("compare", "a", curve, "--tolerance", "1e-3", folder=folder).done()
        check("they never part by more than 0.001" in text, text)
        text = tessera("compare", "a", curve, folder=folder).done()
        check("they part at step 1: loss of the training is " in text, text)
        environment = json.loads((folder / "a/environment.json").read_text())
        check(environment["torch"].startswith("2.") and environment["ranks"] == "1", environment)
        for library in ("mkl", "onednn", "openmp", "cpu capability", "gpu libraries"):
            check(environment[library], library, environment)
        check("v" in environment["onednn"] and "\n" not in environment["mkl"], environment)
        run = tessera("compare", "a", folder / "a/recipe.toml", folder=folder)
        check(run.wait() == 2 and '[monitor.compare] ' in run.text() and ' has no column "step"' in run.text(), run.text())
        curve.write_text("step,loss\n1000,1\n")
        run = tessera("compare", "a", curve, folder=folder)
        check(run.wait() == 2 and "have no step in common" in run.text(), run.text())


def the_report_tells_skipped_steps_and_the_environment():
    with scratch() as folder:
        variables = {"NCCL_DEBUG": "WARN", "GLOO_E2E_WORD": "a<b", "OMP_WAIT_POLICY": "PASSIVE", "TESSERA_E2E_WORD": "1"}
        guarded = settings(train__steps=20, guard__spike_factor=1.0001, guard__spike_window=4, guard__spike_steps=1000)
        train(folder, *guarded, env=variables).done()
        skipped = summary(folder / "run")["skipped_steps"]
        check(0 < skipped < 20, "the guard was to skip some of the steps:", skipped)
        page = (folder / "run/report.html").read_text()
        check(f'Skipped steps</span><span class="value">{skipped}<' in page, "no card of skipped steps")
        check(f"<dt>skipped steps</dt><dd>{skipped}</dd>" in page, "no fact of skipped steps")
        environment = json.loads((folder / "run/environment.json").read_text())
        # Ranks on CPUs load no NCCL.
        check(environment["nccl"] == "none" and "<dt>nccl</dt><dd>none</dd>" in page, environment)
        check(f"<dt>torch</dt><dd>{environment['torch']}</dd>" in page, "the version of torch")
        for name, value in variables.items():
            check(environment["variables"][name] == value, name, environment)
            check(f"<dt>{name}</dt><dd>{value.replace('<', '&lt;')}</dd>" in page, name, "is not in the report")
        train(folder, run="plain").done()
        page = (folder / "plain/report.html").read_text()
        check("Skipped steps" not in page and "<dt>skipped steps</dt><dd>0</dd>" in page, "nothing was skipped")


def report_of_a_run_that_goes_on_and_of_a_stopped_one():
    with scratch() as folder:
        secrets = {name: "s3cr3t" for name in ("TESSERA_TOKEN", "NCCL_KEY", "TORCH_PASSWORD", "CUDA_SECRET", "SLURM_CREDENTIAL")}
        page = folder / "run/report.html"
        with train(folder, "--procs", 2, *settings(train__steps=1000000), env=secrets) as run:
            run.wait_for_step(3, folder / "run")
            text = tessera("report", "run", folder=folder).done()
            check(re.search(r"^wrote run/report\.html \(\d+ rows, \d evaluations\)$", text, re.M), text)
            going_on = page.read_text()
            send(run.pid, signal.SIGTERM)
            run.wait()
        for name in ("Loss", "Throughput", "Environment", "Recipe", "written by tessera report after step "):
            check(name in going_on, name, "is not in the page")
        tessera("report", "run", "-o", "other.html", folder=folder).done()
        steps = rows(folder / "run")[-1]["step"]
        check(f"after step {steps:,};" in (folder / "other.html").read_text(), steps)
        for path in (folder / "run").rglob("*"):
            check(not path.is_file() or b"s3cr3t" not in path.read_bytes(), "a secret in", path)
        train(folder, run="whole").done()
        before = (folder / "whole/report.html").read_text()
        refused = tessera("report", "whole", folder=folder)
        check(refused.wait() == 2 and "whole is finished: its report.html has predictions" in refused.text(), refused.text())
        check((folder / "whole/report.html").read_text() == before, "the page of a finished run was replaced")
        refused = tessera("report", "nowhere", folder=folder)
        check(refused.wait() == 2 and "there is no recipe.toml in nowhere" in refused.text(), refused.text())


def the_images_of_the_report_stand_for_all():
    """Both classes are shown although the folder lists one after the other, and the caption tells of how many."""
    with scratch() as folder:
        photos = make_image_folder(folder / "photos", images=100)
        train(folder, "--procs", 2, *settings(data__source=f"folder:{photos}", model__classes=2, train__batch=20, train__steps=2)).done()
        page = (folder / "run/report.html").read_text()
        truths = re.findall(r'<img alt="(dark|light)" src="data:image/png', page)
        check(len(truths) == 48 and truths.count("dark") == truths.count("light") == 24, truths)
        top1 = summary(folder / "run")["val_top1"]
        check(f"of these 48 test images are right, drawn evenly from all 200 ({top1:.1f} % right)" in page, top1)


def trace_is_a_file_of_all_ranks():
    with scratch() as folder:
        text = train(folder, "--procs", 2, "--trace", "2:3").done()
        check(str(folder / "run/trace.json") in text, text)
        events = json.loads((folder / "run/trace.json").read_text())["traceEvents"]
        for rank in (0, 1):
            steps = [event["name"] for event in events if event["pid"] == rank and event.get("cat") == "step"]
            check(steps == ["step 2", "step 3"], rank, steps)
        run = train(folder, "--trace", "3:2", run="wrong")
        check(run.wait() == 2 and 'run.trace is "3:2" ' in run.text(), run.text())


def a_time_limit_saves_and_stops():
    with scratch() as folder:
        keys = settings(train__steps=100000, run__time_limit=8, run__time_margin=2)
        text = train(folder, "--procs", 2, *keys).done(seconds=60)
        check("stopped early; state saved in " in text, text)
        saved = rows(folder / "run")[-1]["step"]
        check(0 < saved < 100000, saved)
        environment = {"SLURM_JOB_END_TIME": "1000000000"}  # long ago: not one step more than the one under way
        text = train(folder, *settings(train__steps=1000), run="late", env=environment).done()
        check("stopped early; state saved in " in text and "step_00000001" in text, text)
        text = train(folder, "--procs", 2, *settings(train__steps=2, optimizer__lr=0), run="odd", env={"SLURM_JOB_END_TIME": "soon"}).done()
        check(text.count("warning: SLURM_JOB_END_TIME is 'soon': expected seconds since 1970; ") == 1, text)
        check(text.count("warning: [recipe.schedule] optimizer.lr = 0: the learning rate is 0 at every step") == 1, text)


def doctor_judges_a_machine():
    with scratch() as folder:
        recipe = tiny_recipe(folder)
        run = tessera("doctor", recipe, "--procs", 2, "--json", folder=folder)
        check(run.wait() in (0, 2), run.text())
        found = {one["subject"]: one for one in json.loads(run.text())}
        check(list(found) == ["memory", "disk", "cores", "open files", "data", "link"], found)
        check(all((one["level"] == "ok") == (one["advice"] == "") for one in found.values()), found)
        huge = settings(model__width=8192, model__depth=200, model__mlp_width=32768)
        run = tessera("doctor", recipe, *huge, folder=folder)
        check(run.wait() == 2 and "FAIL  memory " in run.text() and "FAIL  disk " in run.text(), run.text())
        check("ok    link        one rank sends nothing" in run.text(), run.text())
        frozen = ("--set", 'optimizer.groups=["*: freeze"]')
        refused = tessera("doctor", recipe, *frozen, folder=folder)
        check(refused.wait() == 2 and "error: [train.groups] optimizer.groups freezes all " in refused.text(), refused.text())
        run = tessera("train", recipe, *frozen, "--dry-run", folder=folder)
        check(run.wait() == 2 and run.text().splitlines()[-1] == refused.text().splitlines()[-1], run.text(), refused.text())
        photos = f"folder:{make_image_folder(folder / 'photos')}"
        run = tessera("doctor", recipe, *settings(model__classes=1, data__source=photos, train__batch=4), folder=folder)
        check(run.wait() == 2 and f"{photos} has 2 classes: expected at most model.classes (1)" in run.text(), run.text())
        check(not os.path.exists(folder / "runs"), "doctor writes nothing")


def doctor_measures_the_link():
    """Between the ranks of --procs, and those that a launcher has started: its rank 0 speaks."""
    line = r"link +2 ranks over {}: a rank gathers [0-9.]+ [KMG]iB/s and reduces [0-9.]+ [KMG]iB/s; the .* of a step take "
    with scratch() as folder:
        recipe = tiny_recipe(folder)
        for shared, name in (("true", "shared memory"), ("false", "TCP")):
            run = tessera("doctor", recipe, "--procs", 2, "--set", f"run.shared_memory={shared}", folder=folder)
            check(run.wait() in (0, 2) and re.search(line.format(name), run.text()), run.text())
        port = free_port()
        ranks = [Run([PROGRAM, "doctor", recipe], folder,
                     {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
                      "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}) for rank in range(2)]
        check(ranks[0].wait(60) in (0, 2) and re.search(line.format("shared memory"), ranks[0].text()), ranks[0].text())
        check(ranks[1].wait(60) == 0 and ranks[1].text() == "", ranks[1].text())


if __name__ == "__main__":
    main(eval_leaves_the_same_folder_on_any_ranks, eval_looks_at_frozen_features, compare_says_where_runs_part,
         the_report_tells_skipped_steps_and_the_environment,
         report_of_a_run_that_goes_on_and_of_a_stopped_one, the_images_of_the_report_stand_for_all, trace_is_a_file_of_all_ranks, a_time_limit_saves_and_stops, doctor_judges_a_machine,
         doctor_measures_the_link)
