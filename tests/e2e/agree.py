# SPDX-License-Identifier: Apache-2.0
"""Ranks that would not compute together what one rank would compute: each start is refused on every rank, within seconds,
with one line that names the difference; and what several starts leave in one store is told apart."""
import contextlib
import os
import shutil
import signal
import subprocess
import time

from files import make_image_folder
from harness import PROGRAM, Run, Skip, check, free_port, main, rows, scratch, send, settings, summary, tiny_recipe, train
from peers import peers_python

LIMIT = 20.0  # seconds from the start to the end of the last rank


def other_copy(folder, data):
    """The words before a command that sees `data` as folder/data."""
    return ["unshare", "--mount", "sh", "-c", f'mount --bind {data} {folder}/data && exec "$@"', "sh"]


@contextlib.contextmanager
def ranks_of(folder, commands):
    """A process for each of `commands`, which is that of its rank."""
    environment = {"WORLD_SIZE": str(len(commands)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Run(command, folder, {**environment, "RANK": str(rank)})) for rank, command in enumerate(commands)]


@contextlib.contextmanager
def ranks(folder, differences, words=(), world=None):
    """A process for each of `differences`: what its environment has of its own; "data": what it sees as folder/data;
    "options": what else its command line has."""
    port = str(free_port())
    with contextlib.ExitStack() as stack:
        runs = []
        for rank, own in enumerate(differences):
            data = own.pop("data", None)
            options = own.pop("options", ())
            seen = other_copy(folder, data) if data else []
            environment = {"WORLD_SIZE": str(world or len(differences)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank), **own}
            command = [*seen, PROGRAM, "train", tiny_recipe(folder), *settings(run__dir=folder / "run", run__timeout=15), *words, *options]
            runs.append(stack.enter_context(Run(command, folder, environment)))
        yield runs


def check_all_refused(runs, text):
    start = time.monotonic()
    for run in runs:
        code = run.wait(LIMIT)
        check(code == 2 and text in run.text(), "expected exit 2 and", repr(text), "got", code, run.tail())
        check("Traceback" not in run.text() and "terminate" not in run.text(), run.tail())
    check(time.monotonic() - start < LIMIT, "too late")


def kernels_and_dtype():
    for shared in ("true", "false"):
        with scratch() as folder:
            words = settings(run__shared_memory=shared)
            with ranks(folder, [{}, {"TESSERA_AVX2": "0", "TESSERA_AVX512": "0", "TESSERA_AMX": "0"}], words) as runs:
                check_all_refused(runs, "ranks disagree on the CPU's kernels: those for")
        with scratch() as folder:
            with ranks(folder, [{}, {"ATEN_CPU_CAPABILITY": "default"}], words) as runs:
                check_all_refused(runs, "ranks disagree on the CPU capability of LibTorch: ")
        with scratch() as folder:
            words = settings(run__shared_memory=shared, precision__compute="auto")
            with ranks(folder, [{"TESSERA_BF16": "1"}, {"TESSERA_BF16": "0"}], words) as runs:
                codes = [run.wait(LIMIT) for run in runs]
                if codes == [0, 0]:
                    raise Skip("precision.compute = auto is fp32 on this CPU with and without TESSERA_BF16")
                check_all_refused(runs, "ranks disagree on the dtype that precision.compute means: bf16 on rank 0, fp32 on rank 1")


def copies_of_the_data():
    """Two hosts are two mount namespaces: each rank sees a copy of its own."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        raise Skip("this user may not make mount namespaces (unshare --mount)")

    def added(copy):
        shutil.copy(copy / "train/dark/001.png", copy / "train/dark/again.png")

    def renamed(copy):
        (copy / "train/light/003.png").rename(copy / "train/light/zebra.png")

    def other_class(copy):
        for split in ("train", "val"):
            (copy / split / "dark").rename(copy / split / "zdark")

    def without_validation(copy):
        (copy / "val/dark/001.png").unlink()

    cases = ((added, "the number of samples of data.train: 80 on rank 0, 81 on rank 1"),
             (without_validation, "the number of samples of data.val: 80 on rank 0, 79 on rank 1"),
             (other_class, "the class names of data.train: 2 classes (dark, light; checksum "),
             (renamed, "the names and labels of the samples of data.train: checksum "))
    for change, text in cases:
        with scratch() as folder:
            for name in ("a", "b"):
                make_image_folder(folder / name)
            (folder / "data").mkdir()
            change(folder / "b")
            words = settings(data__source=f"folder:{folder}/data", data__index_dir="none", model__classes=2)
            with ranks(folder, [{"data": folder / "a"}, {"data": folder / "b"}], words) as runs:
                check_all_refused(runs, f"ranks disagree on {text}")


def commands():
    with scratch() as folder, ranks(folder, [{}, {"options": ("--resume", "latest")}]) as runs:
        check_all_refused(runs, "ranks disagree on the command: train on rank 0, train --resume latest on rank 1")
    with scratch() as folder:
        with ranks(folder, [{}, {}]) as runs:
            check([run.wait(60) for run in runs] == [0, 0], runs[0].tail(), runs[1].tail())
        for first, second, text in ((("eval", folder / "run"), ("eval", folder / "run", "--split", "val", "--knn", 5),
                                     "eval --split val on rank 0, eval --split val --knn 5 on rank 1"),
                                    (("bench", "step", "--model", "mu"), ("bench", "step", "--model", "mu", "--rounds", 7),
                                     "bench step --rounds 5 on rank 0, bench step --rounds 7 on rank 1")):
            with ranks_of(folder, [[PROGRAM, *words] for words in (first, second)]) as runs:
                check_all_refused(runs, f"ranks disagree on the command: {text}")


def training_split_of_an_evaluation():
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        raise Skip("this user may not make mount namespaces (unshare --mount)")
    with scratch() as folder:
        for name in ("data", "b"):
            make_image_folder(folder / name)
        words = settings(data__source=f"folder:{folder}/data", data__index_dir="none", model__classes=2)
        with ranks(folder, [{}, {}], words) as runs:
            check([run.wait(60) for run in runs] == [0, 0], runs[0].tail(), runs[1].tail())
        (folder / "b/train/dark/001.png").unlink()
        command = [PROGRAM, "eval", folder / "run", "--split", "val", "--knn", 5]
        with ranks_of(folder, [command, [*other_copy(folder, folder / "b"), *command]]) as runs:
            check_all_refused(runs, "ranks disagree on the number of samples of data.train: 80 on rank 0, 79 on rank 1")


def weights_to_begin_with():
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        raise Skip("this user may not make mount namespaces (unshare --mount)")
    with scratch() as folder:
        (folder / "data").mkdir()
        for name, content in (("a", b"one"), ("b", b"two")):
            (folder / name).mkdir()
            (folder / name / "weights.safetensors").write_bytes(content)
        words = settings(train__init_from=folder / "data/weights.safetensors")
        with ranks(folder, [{"data": folder / "a"}, {"data": folder / "b"}], words) as runs:
            check_all_refused(runs, "ranks disagree on the contents of train.init_from: 3 bytes, checksum ")


def recipes_and_worlds():
    with scratch() as folder, ranks(folder, [{}, {}]) as runs:
        check([run.wait(60) for run in runs] == [0, 0], runs[0].tail(), runs[1].tail())  # the others differ by what they name
    with scratch() as folder:
        with ranks_of(folder, [[PROGRAM, "train", tiny_recipe(folder), *settings(run__dir=folder / "run", run__timeout=15, optimizer__lr=rate)]
                               for rate in ("1e-3", "2e-3")]) as runs:
            check_all_refused(runs, "ranks disagree on the recipe: 'lr = 0.001' on rank 0, 'lr = 0.002' on rank 1")
    for of_first, of_second in ((2, 4), (4, 2)):  # both divide the batch
        with scratch() as folder, ranks(folder, [{"WORLD_SIZE": str(of_first)}, {"WORLD_SIZE": str(of_second)}]) as runs:
            check_all_refused(runs, f"the world size is {of_first} on rank 0 and {of_second} on rank 1")


def layouts():
    with scratch() as folder:
        with ranks_of(folder, [[PROGRAM, "train", tiny_recipe(folder), *settings(run__dir=folder / "run", run__timeout=15, parallel__tensor=tensor)]
                               for tensor in (1, 2)]) as runs:
            check_all_refused(runs, "ranks disagree on the recipe: 'tensor = 1' on rank 0, 'tensor = 2' on rank 1")


def plan_files():
    """One path, and other contents on each host."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        raise Skip("this user may not make mount namespaces (unshare --mount)")
    with scratch() as folder:
        with ranks(folder, [{}, {}]) as runs:
            check([run.wait(60) for run in runs] == [0, 0], runs[0].tail(), runs[1].tail())
        plan = (folder / "run/plan.json").read_text()
        shutil.rmtree(folder / "run")
        (folder / "data").mkdir()
        for name, level in (("a", "zero3"), ("b", "zero2")):
            (folder / name).mkdir()
            (folder / name / "plan.json").write_text(plan.replace('"zero3"', f'"{level}"'))
        words = settings(parallel__plan=folder / "data/plan.json")
        with ranks(folder, [{"data": folder / "a"}, {"data": folder / "b"}], words) as runs:
            check_all_refused(runs, "ranks disagree on the plan: ")


def a_rank_that_never_comes():
    """Every rank that waits names it, also after rank 0, which serves the store, has ended."""
    with scratch() as folder, ranks(folder, [{}, {}], settings(run__timeout=4, train__batch=30), world=3) as runs:
        for run in runs:
            check(run.wait(LIMIT) == 3 and "while waiting for rank 2 of 3 (was it started?" in run.text(), run.tail())
            check("Failed to recv" not in run.text(), run.tail())


def a_rank_that_cannot_start():
    """Its reason ends the others at once, long before run.timeout."""
    for failing in (0, 1):
        with scratch() as folder:
            differences = [{}, {}]
            differences[failing] = {"options": ("--set", "data.source=folder:nowhere")}
            with ranks(folder, differences, settings(run__timeout=600)) as runs:
                for rank, run in enumerate(runs):
                    check(run.wait(LIMIT) == 2 and "nowhere" in run.text(), run.tail())
                    check((f"[mesh.connect] rank {failing} cannot start: " in run.text()) == (rank != failing), run.tail())
        with scratch() as folder:  # as Slurm starts a recipe with a slip
            start = time.monotonic()
            with ranks(folder, [{}, {}], settings(run__timeout=600, data__source="folder:nowhere")) as runs:
                for run in runs:
                    check(run.wait(LIMIT) == 2 and "nowhere" in run.text(), run.tail())
            check(time.monotonic() - start < LIMIT, "too late")


def a_second_process_of_a_rank():
    endless = settings(train__steps=1000000, train__eval_every_steps=0)
    with scratch() as folder, ranks(folder, [{}, {}], endless) as runs:
        runs[0].wait_for_text("step 5/")
        with open(f"/proc/{runs[1].process.pid}/environ", "rb") as file:
            port = dict(line.split(b"=", 1) for line in file.read().split(b"\0") if b"=" in line)[b"MASTER_PORT"].decode()
        environment = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": "1"}
        command = [PROGRAM, "train", tiny_recipe(folder), *settings(run__dir=folder / "run", run__timeout=15), *endless]
        with Run(command, folder, environment) as second:
            check(second.wait(LIMIT) == 2 and "rank 1 has joined this run already" in second.text(), second.tail())
        step = len(rows(folder / "run"))
        runs[0].wait_for(lambda: len(rows(folder / "run")) > step + 5, "steps of the job that was there first")
        send(runs[0].pid, signal.SIGTERM)
        check([run.wait(60) for run in runs] == [0, 0], runs[0].tail(), runs[1].tail())


def restarted_by_torchrun():
    """The agent's store outlives the first start; what that left there must not be taken for the second's."""
    with scratch() as folder:
        words = [peers_python("torch"), "-m", "torch.distributed.run", "--nproc-per-node=2", "--no-python", "--max-restarts=2",
                 "--master-addr=127.0.0.1", f"--master-port={free_port()}", PROGRAM, "train", tiny_recipe(folder),
                 *settings(run__dir=folder / "run", run__timeout=15, train__steps=1500, train__eval_every_steps=0, checkpoint__every_steps=20),
                 "--resume", "latest"]
        with Run(words, folder, {"OMP_NUM_THREADS": "1"}) as run:
            run.wait_for_text("step 45/")
            send(run.ranks()[1], signal.SIGKILL)
            check(run.wait(120) == 0, run.tail())
            check("resumed" in run.text(), run.tail())
        check(summary(folder / "run")["steps"] == 1500)


def restarted_by_its_parent():
    """tessera train --procs 2 --max-restarts 2: a killed rank is no end, and a recipe's fault is no reason to start again."""
    with scratch() as folder:
        keys = settings(train__steps=1500, train__eval_every_steps=0, checkpoint__every_steps=20, run__timeout=15)
        with train(folder, "--procs", 2, "--max-restarts", 2, *keys) as run:
            for step in (45, 200):
                run.wait_for_step(step, folder / "run")
                send(run.ranks()[1], signal.SIGKILL)
            check(run.wait(120) == 0, run.tail())
            check("restart 1 of 2, with --resume latest" in run.text() and "restart 2 of 2" in run.text(), run.tail())
        check(summary(folder / "run")["steps"] == 1500)
    with scratch() as folder:
        with train(folder, "--procs", 2, "--max-restarts", 1, *settings(train__steps=1000000, run__timeout=15)) as run:
            run.wait_for_step(5, folder / "run")
            send(run.ranks()[0], signal.SIGKILL)
            run.wait_for_text("nothing to resume")  # no checkpoint yet
            run.wait_for(lambda: len(run.ranks()) == 2, "both ranks again")
            send(run.ranks()[0], signal.SIGKILL)
            check(run.wait(60) == 3, run.tail())
            check("restart 1 of 1" in run.text(), run.tail())
        with train(folder, "--procs", 2, "--max-restarts", 3, *settings(train__steps=1000000, run__timeout=4), run="stopped") as run:
            run.wait_for_step(5, folder / "stopped")
            send(run.ranks()[1], signal.SIGSTOP)
            send(run.pid, signal.SIGTERM)  # a failure after it is no reason to go on
            check(run.wait(60) == 3 and "restart" not in run.text(), run.tail())
        run = train(folder, "--procs", 2, "--max-restarts", 3, "--set", "model.width=7", run="wrong")
        check(run.wait(60) == 2 and "restart" not in run.text(), run.tail())
        run = train(folder, "--max-restarts", 1, run="alone")
        check(run.wait(60) == 2 and "--max-restarts 1 has no effect without --procs" in run.text(), run.tail())


def each_rank_restarted_by_its_own_supervisor():
    """systemd's Restart=, a pod of Kubernetes: the killed rank comes back while rank 0 of the first start still serves its store."""
    with scratch() as folder:
        port = str(free_port())
        command = [PROGRAM, "train", tiny_recipe(folder), *settings(run__dir=folder / "run", run__timeout=15, train__steps=1500,
                                                                    train__eval_every_steps=0, checkpoint__every_steps=20),
                   "--resume", "latest"]

        def start(rank):
            return Run(command, folder, {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank)})

        with contextlib.ExitStack() as stack:
            first = [stack.enter_context(start(rank)) for rank in (0, 1)]
            first[0].wait_for_text("step 45/")
            first[1].process.kill()
            first[1].process.wait()
            second = {1: stack.enter_context(start(1))}
            check(first[0].wait(30) == 3, first[0].tail())
            second[0] = stack.enter_context(start(0))
            check([second[rank].wait(120) for rank in (0, 1)] == [0, 0], second[0].tail(), second[1].tail())
            check("resumed" in second[0].text(), second[0].tail())
        check(summary(folder / "run")["steps"] == 1500)


if __name__ == "__main__":
    main(kernels_and_dtype, copies_of_the_data, commands, training_split_of_an_evaluation, weights_to_begin_with, recipes_and_worlds, layouts, plan_files, a_rank_that_never_comes, a_rank_that_cannot_start, a_second_process_of_a_rank, restarted_by_torchrun, restarted_by_its_parent,
         each_rank_restarted_by_its_own_supervisor)
