# SPDX-License-Identifier: Apache-2.0
"""tessera bench: numbers of step and scaling fit together, on one rank and on several, in text and in JSON; how it ends."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

from harness import check, main, scratch, send, tessera

SMALL = ("--model", "mu", "--batch", 4, "--rounds", 2, "--set", "run.threads=1")


def numbers(found, ranks):
    check(found["ranks"] == ranks and found["batch_per_rank"] == 4 and found["global_batch"] == 4 * ranks, found)
    check(len(found["step_seconds_all"]) == 2 and found["step_seconds"] > 0, found)
    rate = found["global_batch"] / found["step_seconds"]
    check(abs(found["images_per_second"] / rate - 1) < 1e-6, found)
    check(0 < found["tflops"] < found["gemm_tflops"] * 1.5 and found["peak_rss_bytes"] > 2**26, found)
    check(found["share_of_peak"] < 1 if "share_of_peak" in found else True, found)
    check(found["device"] == "CPU" and "device_peak_bytes" not in found and "replayed_passes" not in found, found)
    check(0 <= found["cpus_of_others"] <= 1, found)
    kinds = found["seconds_by_kind"]
    check(kinds["gemm_forward"] > 0 and kinds["attention"] > 0 and kinds["optimizer"] > 0 and kinds["norm"] > 0, kinds)
    check((kinds["waiting_for_ranks"] > 0) == (ranks > 1), kinds)


def step_on_one_rank_and_on_two():
    with scratch() as folder:
        for ranks in (1, 2):
            words = ("bench", "step", *SMALL, "--procs", ranks, "--output", folder / "step.json")
            text = tessera(*words, "--json", folder=folder).done(120)
            numbers(json.loads((folder / "step.json").read_text()), ranks)
            check('"images_per_second"' in text, text)
        text = tessera("bench", "step", *SMALL, "--dtype", "fp32", "--recompute", folder=folder).done(120)
        for part in ("whole step", "TFLOP/s", "peak memory", "gemm_forward", "fp32", "recompute", "mu on CPU, batch"):
            check(part in text, part, "in", text)


def kernels_of_a_step():
    with scratch() as folder:
        words = ("bench", "step", *SMALL, "--quiet", "--kernels", folder / "kernels.json")
        tessera(*words, folder=folder).done(120)
        found = json.loads((folder / "kernels.json").read_text())
        seconds = [kernel["seconds"] for kernel in found["kernels"]]
        names = {kernel["name"]: kernel for kernel in found["kernels"]}
        check(seconds == sorted(seconds, reverse=True) and seconds[-1] >= 0, seconds)
        check(names["tessera::optimizer"]["calls"] == 1, names["tessera::optimizer"])
        check(names["tessera::linear"]["calls"] >= 4, names["tessera::linear"])


def children_of(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def steps_on_request():
    """Another program asks for steps through a pipe, and learns their times and the memory of all ranks."""
    with scratch() as folder:
        pipe = folder / "requests"
        os.mkfifo(pipe)
        words = ("bench", "step", "--model", "mu", "--batch", 4, "--procs", 2, "--set", "run.threads=1", "--requests", pipe)
        with tessera(*words, folder=folder) as run, open(os.open(pipe, os.O_RDWR), "w", buffering=1) as requests:
            def answers():
                return [json.loads(line) for line in run.text().splitlines() if line.startswith("{")]
            for number, steps in enumerate((1, 3)):
                requests.write(f"{steps}\n")
                run.wait_for(lambda: len(answers()) > number, "an answer")
                seconds = answers()[number]["step_seconds"]
                check(len(seconds) == steps and all(second > 0 for second in seconds), seconds)
            cores = [os.sched_getaffinity(rank) for rank in children_of(run.process.pid)]
            check(len(cores) == 2, cores)
            if len(os.sched_getaffinity(0)) > 1:  # else the ranks share one
                check(all(cores) and not cores[0] & cores[1], f"ranks stay on cores of their own: {cores}")
            requests.close()
            run.done(60)
            ranks = answers()[2]["ranks"]
            check(len(ranks) == 2, ranks)
            for rank in ranks:
                check(0 < rank["training_memory_bytes"] < rank["peak_rss_bytes"], rank)
        (folder / "bad").write_text("2\nmany\n")
        run = tessera(*words[:-1], folder / "bad", folder=folder)
        check(run.wait(60) == 2, run.text())
        check('bad is "many": expected a number of steps, 1 to 1000000' in run.text(), run.text())


def a_busy_machine_is_told():
    with scratch() as folder:
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
        try:
            text = tessera("bench", "step", "--model", "mu", "--set", "run.threads=1", "--rounds", 100, folder=folder).done(120)
        finally:
            for program in busy:
                program.kill()
                program.wait()
        share = re.search(r"\nother programs had +(\d+) % of the CPUs meanwhile: alone the step is faster\n", text)
        check(share and 10 <= int(share[1]) <= 100, text)


def scaling_is_a_table():
    with scratch() as folder:
        words = ("bench", "scaling", "--model", "mu", "--batch", 4, "--rounds", 1, "--ranks", "1,2")
        rows = json.loads(tessera(*words, "--json", folder=folder).done(120))
        check([row["global_batch"] for row in rows] == [4, 8] and rows[0]["efficiency"] == 1, rows)
        rows = json.loads(tessera(*words, "--strong", "--json", folder=folder).done(120))
        check([row["batch_per_rank"] for row in rows] == [4, 2], rows)
        rows = json.loads(tessera(*words, "--tensor", "1,2", "--strong", "--json", folder=folder).done(120))
        check([(row["ranks"], row["data_parallel"], row["tensor"]) for row in rows] == [(1, 1, 1), (2, 2, 1), (2, 1, 2)], rows)
        # With stages the same images, in at most 8 micro-batches.
        words = (*words[:5], 6, *words[6:-1], "2,4", "--pipeline", "1,2", "--tensor", "1,2")
        rows = json.loads(tessera(*words, "--json", folder=folder, stderr=subprocess.DEVNULL).done(240))  # 4 ranks may be warned about
        columns = ("ranks", "data_parallel", "tensor", "pipeline", "batch_per_rank", "micro_batches", "global_batch")
        check([tuple(row[column] for column in columns) for row in rows] == [
            (2, 2, 1, 1, 6, 1, 12), (4, 4, 1, 1, 6, 1, 24), (2, 1, 2, 1, 6, 1, 12), (4, 2, 2, 1, 6, 1, 24),
            (2, 1, 1, 2, 2, 6, 12), (4, 2, 1, 2, 2, 6, 24), (4, 1, 2, 2, 2, 6, 24)], rows)
        text = tessera(*words[:-2], folder=folder, stderr=subprocess.DEVNULL).done(240)
        check(len(text.strip().splitlines()) == 5 and "efficiency" in text and "pipeline" in text.split(), text)


def one_signal_ends_it():
    endless = ("--model", "mu", "--batch", 1, "--rounds", 10**9)
    for number in (signal.SIGTERM, signal.SIGINT):
        for words in (("step", *endless), ("step", *endless, "--procs", 2), ("shard", *endless, "--procs", 2),
                      ("scaling", *endless, "--ranks", 2)):
            with scratch() as folder, tessera("bench", *words, folder=folder) as run:
                time.sleep(3)
                check(not run.ended(), words, run.text())
                send(run.pid, number)
                check(run.wait(20) == 128 + number, words, run.process.returncode, run.text())
                run.check_nothing_left()
                check("error" not in run.text(), words, run.text())
                check(not list(folder.glob("tessera-*")), words, list(folder.iterdir()))


def scaling_clears_up_behind_one_that_was_killed():
    with scratch() as folder:
        def left():
            return list(folder.glob("tessera-scaling-*"))
        with tessera("bench", "scaling", "--model", "mu", "--rounds", 10**9, "--ranks", 2, folder=folder) as run:
            run.wait_for(left, "its folder")
            run.kill()
        check(left(), "the folder went with it: nothing is tested")
        run_folder = folder / "tessera-scaling-resume"  # as a run's folder would be: its lock is free, too
        run_folder.mkdir()
        (run_folder / ".lock").touch()
        tessera("bench", "scaling", "--model", "mu", "--rounds", 1, "--ranks", 1, folder=folder).done(120)
        check(left() == [run_folder], left())


def nonsense_is_refused_in_one_line():
    with scratch() as folder:
        for words, expected in (
                (("step", "--procs", 0), "[bench.step] --procs is 0: expected at least 1"),
                (("shard", "--procs", 0), "[bench.shard] --procs is 0: expected at least 1"),
                (("step", "--output", "nowhere/step.json"), "[bench.step] --output is nowhere/step.json: expected the name of a file in a folder that exists"),
                (("step", "--requests", "nowhere"), "[bench.step] cannot read the file of --requests: nowhere"),
                (("step", "--requests", "."), "[bench.step] cannot read the file of --requests: ."),
                (("step", "--requests", "a", "--json"), "--json excludes --requests"),
                (("step", "--kernels", "."), "[bench.step] --kernels is .: expected the name of a file"),
                (("step", "--kernels", "a", "--output", "a"), "[bench.step] --output and --kernels are both a: expected two different files"),
                (("scaling", "--batch", 0), "[bench.scaling] --batch is 0: expected at least 1"),
                (("scaling", "--rounds", 0), "[bench.scaling] --rounds is 0: expected at least 1"),
                (("scaling", "--tensor", 3), "[bench.scaling] --tensor has 3, which divides none of --ranks: expected divisors of some of --ranks"),
                (("scaling", "--set", "parallel.tensor=2"),
                 "[bench.scaling] --set parallel.tensor is given, which sets the tensor-parallel degree of all rows: expected "
                 "degrees in --tensor, such as --tensor 1,2; remove --set parallel.tensor"),
                (("scaling", "--set", "parallel.pipeline=2"),
                 "[bench.scaling] --set parallel.pipeline is given, which sets the number of stages of all rows: expected "
                 "numbers of stages in --pipeline, such as --pipeline 1,2; remove --set parallel.pipeline"),
                (("scaling", "--pipeline", 3), "[bench.scaling] --pipeline has 3, which divides none of --ranks: expected divisors of some of --ranks"),
                (("scaling", "--pipeline", 2, "--tensor", 2),
                 "[bench.scaling] --tensor has 2, which divides none of --ranks together with one of --pipeline: expected "),
                (("scaling", "--model", "nope"), 'unknown model "nope"'),
                (("scaling", "--set", "model.image_size=17"), "image_size is 17 (--set model.image_size=17, [model]): expected a multiple of patch_size (16)")):
            refused = tessera("bench", *words, folder=folder)
            check(refused.wait(60) == 2, words, refused.text())
            check(refused.text().startswith("error: ") and refused.text().count("\n") == 1, words, refused.text())
            check(expected in refused.text(), words, refused.text())


main(step_on_one_rank_and_on_two, kernels_of_a_step, steps_on_request, a_busy_machine_is_told, scaling_is_a_table, one_signal_ends_it,
     scaling_clears_up_behind_one_that_was_killed, nonsense_is_refused_in_one_line)
