# SPDX-License-Identifier: Apache-2.0
"""SIGINT, SIGTERM and Ctrl-C save and end a run; a second one ends it at once; a lost terminal does not end it.

What was stopped continues with the numbers of a run that never was: the same bits on as many ranks.
"""
import contextlib
import fcntl
import os
import pathlib
import pty
import random
import re
import shutil
import signal
import termios
import time

from agree import ranks
from files import make_image_folder
from harness import (Skip, check, check_same_losses, checkpoints, losses, main, no_core_dump, rows, scratch, send, settings,
                     summary, tessera, tiny_recipe, train, verify)
from kill import start_victim

STOP_LIMIT = 30.0
WAIT_FOR_IMAGES = 5.0
STEPS = 150
WHOLE = settings(train__steps=STEPS, train__eval_every_epochs=0, schedule__warmup_steps=5)
LONG = settings(train__steps=1000000, train__eval_every_epochs=0)


def check_stopped(run, folder, limit=STOP_LIMIT, kept=(1,)):
    """It ended with success in time, before its last step, and left sound checkpoints, as many as one of `kept`."""
    code = run.wait(limit)
    check(code == 0, "exit 0 was expected:", code, run.tail())
    run.check_nothing_left()
    sound = verify(folder / "run", folder)
    check(sound in kept, f"{kept} sound checkpoints were expected, found {sound}" + run.tail())
    for name in ("summary.json", "report.html"):
        check(not (folder / "run" / name).exists(), "the run was over before the signal:", name)


def stop_and_resume():
    """Stopped by SIGINT or SIGTERM on 2 ranks; resumed on 2 (the same bits), 1 and 4 ranks (1e-5)."""
    with scratch() as folder:
        train(folder, "--procs", 2, *WHOLE, run="whole").done()
        expected = losses(folder / "whole")
        check(len(expected) == STEPS, "a row a step was expected:", len(expected))
        for number, before, after, tolerance in (
            (signal.SIGINT, 2, 2, 0.0),
            (signal.SIGTERM, 2, 1, 1e-5),
            (signal.SIGTERM, 1, 4, 1e-5),
        ):
            with scratch() as inner:
                with train(inner, "--procs", before, *WHOLE) as run:
                    run.wait_for_step(20, inner / "run")
                    send(run.pid, number)
                    check_stopped(run, inner)
                    check("stopped early; state saved in" in run.text(), run.text())
                train(inner, "--procs", after, "--resume", "latest", *WHOLE).done()
                check_same_losses(losses(inner / "run"), expected, tolerance)
                check(summary(inner / "run")["world_size"] == after, summary(inner / "run"))


def stop_amid_evaluations_and_saves():
    """Where a run is nothing but evaluations, saves, or saves beside the training; that of the stop itself is the newest."""
    for phase in ("eval", "save", "save beside"):
        for number in (signal.SIGINT, signal.SIGTERM):
            with scratch() as folder, start_victim(phase, 2, folder, None) as run:
                time.sleep(0.5 * random.random())
                run.note_sockets()
                sent_at = time.monotonic()
                send(run.pid, number)
                check_stopped(run, folder, kept=(1, 2, 3, 4))  # the newest three and the best
                seconds = time.monotonic() - sent_at
                saved = re.search(r"stopped early; state saved in (\S*step_\d+)", run.text())
                newest = checkpoints(folder / "run")[-1]
                check(saved and pathlib.Path(saved[1]).name == newest.name, "the newest is", newest, run.tail())
                steps = losses(folder / "run")[-1][0]
                check(newest.name == f"step_{steps:08}", f"{steps} steps were made, and saved is {newest}")
                print(f"  {number.name} amid {phase}: stopped after {seconds:.2f} s, step {steps}", flush=True)


def stop_ends_with_the_step_under_way():
    """A step of some seconds: the signal comes in its first half, and no further step is taken."""
    slow = settings(train__steps=1000, train__eval_every_steps=0, checkpoint__every_steps=1000, data__source="fake:1000000")
    for procs, number in ((1, signal.SIGTERM), (2, signal.SIGUSR1)):
        with scratch() as folder:
            with train(folder, "--procs", procs, *slow, *settings(train__batch=64, train__accumulation=1, train__steps=20), run="quick") as run:
                run.done()
            images = sorted(row["images_per_second"] for row in rows(folder / "quick") if "images_per_second" in row)
            accumulation = min(15000, max(2, round(4 * images[len(images) // 2] / 64)))  # steps of about 4 s
            with train(folder, "--procs", procs, *slow, *settings(train__batch=64 * accumulation, train__accumulation=accumulation)) as run:
                run.wait_for_step(1, folder / "run")
                time.sleep(0.5)
                send(run.pid, number)
                if number == signal.SIGUSR1:  # as at the end of a job: the SIGTERM after it is no second signal
                    time.sleep(0.6)
                    send(run.pid, signal.SIGTERM)
                check_stopped(run, folder)
                check(f"reason of the stop: received {number.name}" in run.text(), run.tail())
            check(losses(folder / "run")[-1][0] == 2, "step 2 was under way, and these were taken:", losses(folder / "run"))


def stop_while_starting():
    """Asked for before the ranks have met, a stop takes effect after the first step: in order all the same."""
    for procs, pause in ((1, 0.05), (1, 0.3), (2, 0.0), (2, 0.2), (2, 0.5), (4, 0.3)):
        with scratch() as folder, train(folder, "--procs", procs, *LONG) as run:
            if procs > 1:
                run.wait_for(lambda: len(run.ranks()) == procs, "all ranks")
            time.sleep(pause)
            send(run.pid, signal.SIGTERM)
            check_stopped(run, folder)


def second_signal_ends_at_once():
    """A rank that hears nothing (SIGSTOP) keeps the run from stopping in order; the second signal does not wait."""
    for number in (signal.SIGINT, signal.SIGTERM):
        with scratch() as folder, train(folder, "--procs", 2, *settings(train__steps=1000000)) as run:
            run.wait_for_step(3, folder / "run")
            send(run.ranks()[1], signal.SIGSTOP)
            send(run.pid, number)
            time.sleep(1.0)
            check(not run.ended(), "the first signal ended it" + run.tail())
            send(run.pid, number)
            code = run.wait(2)
            check(code == 128 + number, f"exit {128 + number} was expected:", code, run.tail())
            run.check_nothing_left()


def hangup_does_not_end_a_run():
    with scratch() as folder, train(folder, "--procs", 2, *WHOLE) as run:
        run.wait_for_step(3, folder / "run")
        for pid in run.processes():
            send(pid, signal.SIGHUP)
        run.done()
        check(summary(folder / "run")["steps"] == STEPS, summary(folder / "run"))


@contextlib.contextmanager
def on_terminal(folder, *words):
    """A run whose parent leads the foreground group of a new terminal; yields it and the terminal's other end."""
    master, slave = pty.openpty()

    def take_terminal():
        no_core_dump()
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    with train(folder, *words, stdin=slave, stdout=slave, stderr=slave, preexec_fn=take_terminal) as run:
        os.close(slave)
        os.set_blocking(master, False)
        yield run, master


def drain(master):
    with contextlib.suppress(OSError):
        while os.read(master, 65536):
            pass


def ctrl_c():
    for procs in (1, 2):
        with scratch() as folder, on_terminal(folder, "--procs", procs, *WHOLE) as (run, master):
            run.wait_for_step(20, folder / "run")
            drain(master)
            os.write(master, b"\x03")
            end = time.monotonic() + STOP_LIMIT
            while not run.ended() and time.monotonic() < end:
                drain(master)  # a terminal that nobody reads holds its writers
                time.sleep(0.02)
            check_stopped(run, folder, 1)
            os.close(master)


def lost_terminal_does_not_end_a_run():
    for procs in (1, 2):
        with scratch() as folder, on_terminal(folder, "--procs", procs, *WHOLE) as (run, master):
            run.wait_for_step(3, folder / "run")
            os.close(master)
            run.done()
            check(summary(folder / "run")["steps"] == STEPS, summary(folder / "run"))
            run.check_nothing_left()


def rows_of(run_dir):
    path = run_dir / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def wait_until_it_stands_still(run, run_dir, seconds=2.0):
    """No row came for so long."""
    last, since = rows_of(run_dir), time.monotonic()
    while time.monotonic() < since + seconds:
        check(not run.ended(), "it ended before its images stopped coming" + run.tail())
        if rows_of(run_dir) != last:
            last, since = rows_of(run_dir), time.monotonic()
        time.sleep(0.02)


def a_file_system_that_hangs_ends_the_run():
    """A save of one rank hangs in the kernel: all ranks end within run.timeout, or 15 s after a stop, and the file is named."""
    library = os.environ.get("TESSERA_E2E_HANG_OPENS")
    if not library:
        raise Skip("TESSERA_E2E_HANG_OPENS is not set (the build has it: ctest, or <build>/tests/e2e/libe2e_hang_opens.so)")
    shard = "shard-00001-of-00002.safetensors"
    for timeout, stops, limit in ((6, False, 6 + 12), (600, True, 15 + 12)):
        with scratch() as folder:
            (folder / "hangs").mkdir()
            keys = settings(train__steps=1000000, train__eval_every_steps=0, train__eval_every_epochs=0, checkpoint__every_steps=20, run__timeout=timeout)
            with train(folder, "--procs", 2, *keys, env={"LD_PRELOAD": library, "TESSERA_E2E_HANGS": str(folder / "hangs")}) as run:
                run.wait_for_step(45, folder / "run")
                (folder / "hangs" / shard).touch()
                wait_until_it_stands_still(run, folder / "run")
                start = time.monotonic()
                if stops:
                    send(run.pid, signal.SIGTERM)
                code = run.wait(limit + 30)
                seconds = time.monotonic() - start
                check(code == 3 and seconds <= limit, f"exit 3 within {limit} s was expected:", code, seconds, run.tail())
                log = (folder / "run/logs/rank-1.log").read_text()
                check("error: [file.create] " in log and f"{shard}: the file system has not answered for " in log, log[-2000:])
                check("error: [launch.local] rank 1 of 2 (pid " in run.text() and shard in run.text(), run.tail())
            check(verify(folder / "run", folder) >= 1, "no sound checkpoint is left")


def a_file_system_that_hangs_at_the_start():
    """Data, run folder or checkpoint do not answer before the ranks have met: the command ends within run.timeout and names the file."""
    library = os.environ.get("TESSERA_E2E_HANG_OPENS")
    if not library:
        raise Skip("TESSERA_E2E_HANG_OPENS is not set (the build has it: ctest, or <build>/tests/e2e/libe2e_hang_opens.so)")
    if not pathlib.Path("/proc/self/syscall").exists():
        raise Skip("this kernel has no /proc/PID/syscall, where calls that hang are seen")
    with scratch() as folder:
        photos = make_image_folder(folder / "photos")
        recipe = tiny_recipe(folder)
        keys = settings(data__source=f"folder:{photos}", model__classes=2, data__index_dir="none", run__timeout=4)
        train(folder, *keys, *settings(train__steps=2), run="trained").done()
        run_dir = settings(run__dir=folder / "new")
        limit = ("--set", "run.timeout=4")
        image = next((photos / "val").rglob("*.png"))
        for hangs, words in (("photos", ("train", recipe, *keys, *run_dir)),
                             ("photos", ("train", recipe, *keys, *run_dir, "--procs", 2)),
                             ("new", ("train", recipe, *keys, *run_dir)),
                             ("new", ("train", recipe, *keys, *run_dir, "--procs", 2)),
                             ("photos", ("eval", folder / "trained")),
                             ("checkpoints", ("eval", folder / "trained", *limit)),
                             ("checkpoints", ("predict", folder / "trained", image, *limit)),
                             ("photos", ("doctor", recipe, *keys))):
            shutil.rmtree(folder / "hangs", ignore_errors=True)
            (folder / "hangs").mkdir()
            os.mkfifo(folder / "hangs" / hangs)
            start = time.monotonic()
            with tessera(*words, folder=folder, env={"LD_PRELOAD": library, "TESSERA_E2E_HANGS": str(folder / "hangs")}) as run:
                code = run.wait(60)
                seconds = time.monotonic() - start
                told = run.text() + "".join(path.read_text() for path in folder.glob("new/logs/rank-*.log"))
                check(code == 3 and seconds < 20, "exit 3 within 20 s was expected:", words, code, seconds, run.tail())
                check(re.search(rf"error: \[file\.\w+\] \S*/{hangs}: the file system has not answered for \d+ s \(rank \d", told), words, told)
            print(f"  {words[0]} {words[-1]}: {hangs} hangs, ended after {seconds:.1f} s", flush=True)
            shutil.rmtree(folder / "new", ignore_errors=True)


def one_rank_stops_all():
    """The rank that was asked, and by what, stands in rank 0's lines and in the log of that rank."""
    endless = settings(train__steps=1000000, train__eval_every_steps=0)
    with scratch() as folder, ranks(folder, [{}, {"SLURM_JOB_END_TIME": "1000"}], endless) as runs:
        check([run.wait(60) for run in runs] == [0, 0], runs[0].tail(), runs[1].tail())
        check("reason of the stop: rank 1: SLURM_JOB_END_TIME = 1000 has passed" in runs[0].text(), runs[0].tail())
        log = (folder / "run/logs/rank-1.log").read_text()
        check("reason of the stop: SLURM_JOB_END_TIME = 1000 has passed" in log, log)
    with scratch() as folder, ranks(folder, [{}, {}], endless) as runs:
        runs[0].wait_for_text("step 5/")
        send(runs[1].pid, signal.SIGTERM)
        check([run.wait(60) for run in runs] == [0, 0], runs[0].tail(), runs[1].tail())
        check("reason of the stop: rank 1: received SIGTERM" in runs[0].text(), runs[0].tail())
        log = (folder / "run/logs/rank-1.log").read_text()
        check("reason of the stop: received SIGTERM" in log, log)


def stop_while_images_do_not_come():
    """A file of one rank hangs, in the training or in an evaluation: the stop waits 5 s for it, saves and ends (docs/running.md).

    What is resumed when the file is back gives the bits of a run that never waited.
    """
    library = os.environ.get("TESSERA_E2E_HANG_OPENS")
    if not library:
        raise Skip("TESSERA_E2E_HANG_OPENS is not set (the build has it: ctest, or <build>/tests/e2e/libe2e_hang_opens.so)")
    with scratch() as folder:
        photos = make_image_folder(folder / "photos")
        for path in list(photos.glob("val/*/*.png")):
            path.rename(path.with_name(f"val-{path.name}"))
        keys = settings(data__source=f"folder:{photos}", model__classes=2, train__batch=16, train__steps=4 * STEPS,
                        train__eval_every_epochs=0, train__eval_every_steps=100, schedule__warmup_steps=5, data__workers=1, data__prefetch=1)
        train(folder, "--procs", 2, *keys, run="whole").done()
        for name in ("005.png", "val-005.png"):
            hangs = folder / f"hangs-{name}"
            hangs.mkdir()
            with scratch() as inner:
                with train(inner, "--procs", 2, *keys,
                           env={"LD_PRELOAD": library, "TESSERA_E2E_HANGS": str(hangs)}) as run:
                    run.wait_for_step(20, inner / "run")
                    (hangs / name).touch()
                    wait_until_it_stands_still(run, inner / "run")
                    if name == "005.png":
                        time.sleep(18.0)  # a stop is in order after a long wait, too
                    check(losses(inner / "run")[-1][0] < 4 * STEPS, "it came to its end")
                    sent_at = time.monotonic()
                    send(run.pid, signal.SIGTERM)
                    check_stopped(run, inner, kept=(1, 2, 3, 4))
                    seconds = time.monotonic() - sent_at
                    print(f"  SIGTERM while {name} hangs: stopped after {seconds:.2f} s", flush=True)
                    check(WAIT_FOR_IMAGES <= seconds <= WAIT_FOR_IMAGES + 3, f"stopped after {seconds:.2f} s" + run.tail())
                    steps = losses(inner / "run")[-1][0]
                    check(checkpoints(inner / "run")[-1].name == f"step_{steps:08}", checkpoints(inner / "run"), steps)
                train(inner, "--procs", 2, "--resume", "latest", *keys).done()
                check_same_losses(losses(inner / "run"), losses(folder / "whole"))
                found = [(row["step"], row["loss"]) for row in rows(inner / "run", "eval")]
                expected = [(row["step"], row["loss"]) for row in rows(folder / "whole", "eval")]
                check(found == expected, found, expected)


if __name__ == "__main__":
    main(stop_and_resume, stop_amid_evaluations_and_saves, stop_ends_with_the_step_under_way, stop_while_starting, second_signal_ends_at_once,
         hangup_does_not_end_a_run, ctrl_c, lost_terminal_does_not_end_a_run, a_file_system_that_hangs_ends_the_run,
         a_file_system_that_hangs_at_the_start, one_rank_stops_all,
         stop_while_images_do_not_come)
