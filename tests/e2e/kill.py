# SPDX-License-Identifier: Apache-2.0
"""A rank, or the parent of all ranks, dies at a random moment, by a signal, because it gets no more memory or because it
reads a file that breaks: all end, the dead one is named, nothing is lost or left.

TESSERA_E2E_SEED repeats a sequence of moments, TESSERA_E2E_MOMENTS says how many.
"""
import contextlib
import os
import random
import re
import resource
import signal
import time

from files import make_image_folder
from harness import (END_LIMIT, check, check_same_losses, is_zombie, losses, main, scratch, send, settings, tessera, train,
                     verify)

ENDLESS = settings(train__steps=1000000, train__eval_every_epochs=0)
TENSOR = settings(parallel__tensor=2)
PIPELINE = settings(parallel__pipeline=2, parallel__micro_batches=4)
# What fills nearly all of a run's time in each phase.
PHASES = {
    "start": ENDLESS,
    "rendezvous": ENDLESS,
    "step": ENDLESS + settings(checkpoint__every_steps=50),
    "save": ENDLESS + settings(checkpoint__every_steps=1, checkpoint__keep=2),
    "save beside": ENDLESS + settings(checkpoint__every_steps=1, checkpoint__keep=2, checkpoint__async="true"),
    "eval": ENDLESS + settings(train__eval_every_steps=1, data__source="fake:4096", checkpoint__every_steps=1),
    "eval command": [],
}


def start_victim(phase, ranks, folder, trained, late=None, layout=()):
    """A run that is in `phase`, and does not leave it by itself soon: of a rendezvous, because rank `late` does not come."""
    if phase == "eval command":
        many = settings(data__source="fake:400000")
        run = tessera("eval", trained, "--procs", ranks, *many, folder=folder)
        run.wait_for(lambda: len(run.ranks()) == ranks, "all ranks")
        return run
    run = train(folder, "--procs", ranks, *PHASES[phase], *layout)
    if phase == "start":
        return run
    if phase == "rendezvous":
        run.wait_for(lambda: late in run.ranks(), "the late rank")
        send(run.ranks()[late], signal.SIGSTOP)
    run.wait_for(lambda: len(run.ranks()) == ranks, "all ranks")
    if phase == "rendezvous":
        others = {pid for rank, pid in run.ranks().items() if rank != late}
        run.wait_for(lambda: run.connected() & others, "one that waits for the others")
    else:
        run.wait_for_text("step 3/" if phase != "eval" else "evaluation at step 1 ")
    return run


def starve(pid):
    """From now on whatever allocates in the process throws. False: it needed nothing new, as a steady step may not."""
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_AS, (1 << 20, 1 << 20))
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline and not is_zombie(pid):
        time.sleep(0.02)
    return is_zombie(pid)


def one_moment(chance, phase, ranks, victim, number, trained, layout=()):
    """`number`: the signal; None: no memory. `layout`: settings of the run."""
    name = "the parent" if victim is None else f"rank {victim}"
    label = f"{number.name if number else 'no more memory'} to {name} of {ranks} in {phase}{' ' if layout else ''}{' '.join(layout[1::2])}"
    late = chance.choice([rank for rank in range(ranks) if rank != victim])
    with scratch() as folder, start_victim(phase, ranks, folder, trained, late, layout) as run:
        pause = (0.05 if phase == "start" else 0.6) * chance.random()
        if phase in ("start", "rendezvous") and victim is not None:
            run.wait_for(lambda: victim in run.ranks(), name)
        time.sleep(pause)
        run.note_sockets()
        pid = run.pid if victim is None else run.ranks().get(victim)
        check(pid is not None and not run.ended(), label, "was over too early" + run.tail())
        killed_at = time.monotonic()
        if number is None:
            number = None if starve(pid) else signal.SIGKILL
            killed_at = time.monotonic()
        if number is not None:
            send(pid, number)
        held_back = run.ranks().get(late) if phase == "rendezvous" else None
        if held_back is not None:
            send(held_back, signal.SIGCONT)
        code = run.wait(END_LIMIT)
        seconds = time.monotonic() - killed_at
        check(code != 0, label, "gave exit 0" + run.tail())
        run.check_nothing_left(END_LIMIT - seconds)
        if victim is not None:
            how = f"was killed by signal {number.value} ({number.name}" if number else "(ended with|was killed by)"
            expected = re.escape(f"rank {victim} of {ranks} (pid {pid}) ") + (re.escape(how) if number else how)
            if victim == 0 and code == 2:  # it says itself, on the console, that it has no more memory
                expected = r"error: \[[a-z_.]+\] .*memory"
            check(re.search(expected, run.text()), label, f"expected '{expected}'" + run.tail())
            check(code == 3 or number is None, label, "exit 3 was expected:", code)
        sound = verify(folder / "run", folder)
        print(f"  {label}, {pause:.3f} s into it: ended in {seconds:.2f} s, {sound} sound checkpoints", flush=True)
        check(phase not in ("save", "save beside", "eval") or sound > 0, label, "lost its checkpoints")


def random_moments():
    seed = int(os.environ.get("TESSERA_E2E_SEED", random.randrange(1 << 30)))
    count = int(os.environ.get("TESSERA_E2E_MOMENTS", 4))
    print(f"TESSERA_E2E_SEED={seed} TESSERA_E2E_MOMENTS={count}", flush=True)
    chance = random.Random(seed)
    phases = list(PHASES)
    chance.shuffle(phases)
    with scratch() as folder:
        train(folder, "--procs", 1).done()
        for index in range(count):
            ranks = chance.choice([2, 4])
            victim = chance.choice([None, *range(ranks)] + list(range(ranks)))
            number = chance.choice([signal.SIGKILL, signal.SIGABRT] + [None] * (victim is not None))
            layout = chance.choice([(), TENSOR, PIPELINE])
            one_moment(chance, phases[index % len(phases)], ranks, victim, number, folder / "run", layout)


def one_rank_throws():
    """An image breaks at a random moment: the rank that reads it next ends with an exception of its data's thread."""
    for ranks in (2, 4):
        with scratch() as folder:
            photos = make_image_folder(folder / "photos")
            keys = settings(data__source=f"folder:{photos}", data__on_error="fail", train__batch=16, model__classes=2)
            with train(folder, "--procs", ranks, *ENDLESS, *keys) as run:
                run.wait_for_text("step 3/")
                time.sleep(0.5 * random.random())
                run.note_sockets()
                pids = run.ranks()
                (photos / "train/dark/003.png").write_bytes(b"this is no image")
                run.wait_for(lambda: run.ended() or any(map(is_zombie, pids.values())), "a rank that throws")
                thrown_at = time.monotonic()
                code = run.wait(END_LIMIT)
                seconds = time.monotonic() - thrown_at
                check(code == 2, "exit 2 was expected:", code, run.tail())
                check(re.search(rf"error: .*dark/003\.png", run.text()), run.tail())
                named = re.search(rf"rank (\d) of {ranks} \(pid (\d+)\) ended with exit code 2", run.text())
                if named:
                    check(named[1] != "0" and pids[int(named[1])] == int(named[2]), "names the rank", run.tail())
                else:  # rank 0 has said it on the console
                    check(run.text().count("error: ") == 1, "one line", run.tail())
                run.check_nothing_left(END_LIMIT - seconds)
                print(f"  rank {named[1] if named else 0} of {ranks} threw: ended in {seconds:.2f} s", flush=True)


def logs_end_with_a_whole_line():
    """What a rank has said is in its file at the moment it is killed."""
    for victim in (0, 1):
        with scratch() as folder, train(folder, "--procs", 2, *ENDLESS) as run:
            run.wait_for_text("step 23/")
            log = folder / f"run/logs/rank-{victim}.log"
            run.wait_for(lambda: "step 23/" in log.read_text(), "the step in the rank's file")
            time.sleep(0.3 * random.random())
            send(run.ranks()[victim], signal.SIGKILL)
            check(run.wait(END_LIMIT) == 3, run.text())
            # The ranks meet in every step, so the other one is ahead by one at most.
            seen = max(map(int, re.findall(r"step (\d+)/", (folder / f"run/logs/rank-{1 - victim}.log").read_text())))
            text = log.read_text()
            last = re.fullmatch(r"\S+ \S+ step (\d+)/[1,0]+ .*", text.splitlines()[-1])
            check(text.endswith("\n") and last, "a whole line of a step was expected:", repr(text[-200:]))
            check(int(last[1]) >= seen - 1, f"step {seen} was seen, the last line is of step {last[1]}")


def resumes_after_a_kill():
    """What a dead run left can be continued."""
    with scratch() as folder:
        with train(folder, "--procs", 2, *settings(train__steps=5000, checkpoint__every_steps=5)) as run:
            run.wait_for_text("step 23/")
            send(run.ranks()[1], signal.SIGKILL)
            check(run.wait(END_LIMIT) == 3, run.text())
        check(verify(folder / "run", folder) > 0, "no checkpoint")
        text = train(folder, "--procs", 2, "--resume", "latest", *settings(train__steps=40)).done()
        check("resumed from" in text, text)


def a_rank_of_a_tensor_group_dies():
    """2 of 4 ranks compute each block together: all ranks end and name the operation that waited; a restarted run ends with the same losses."""
    a_rank_of_a_layout_dies(TENSOR, r"mesh\.[a-z_]+ .+ over .+")


# 4 ranks, 2 stages of 2, whose steps are nearly all passes.
LONG_PASSES = settings(parallel__pipeline=2, parallel__micro_batches=8, model__width=128, model__mlp_width=512, model__image_size=32,
                       train__batch=64)
POSITION = r"stage [01] at [FB]\d of 8 micro-batches(, waiting for [FB]\d of stage [01])?"


def check_positions(folder, victim):
    """The logs of the other ranks name the victim. Returns how many say where in the schedule the rank was; the others were between steps."""
    found = 0
    for rank in {0, 1, 2, 3} - {victim}:
        log = (folder / f"run/logs/rank-{rank}.log").read_text()
        named = re.search(rf"error: \[mesh\.[a-z_]+ .+ over .+\] (no sign of life from )?rank {victim}[:,] ", log)
        check(named, f"rank {rank} does not name rank {victim} and what it waited for:", log[-1000:])
        place = re.search(rf"after step \d+, ({POSITION}, )?unit", log)
        check(place, f"rank {rank} does not say where it was:", log[-1000:])
        found += place[1] is not None
    return found


def kill_one_of_4(run, victim, after):
    """Kills a rank some time after a text; the run names it, and ends with nothing left. Returns how many seconds that took."""
    run.wait_for_text(after)
    time.sleep(0.3 * random.random())
    run.note_sockets()
    pid = run.ranks()[victim]
    send(pid, signal.SIGKILL)
    killed_at = time.monotonic()
    check(run.wait(END_LIMIT) == 3, run.tail())
    run.check_nothing_left(END_LIMIT - (time.monotonic() - killed_at))
    check(f"rank {victim} of 4 (pid {pid}) was killed by signal 9 (SIGKILL" in run.text(), run.tail())
    return time.monotonic() - killed_at


def a_rank_of_a_pipeline_dies():
    """4 ranks, 2 stages of 2: the others end within 5 s and say where in the schedule they were; a restart continues as with tensor groups."""
    positions = 0
    for victim in (0, random.choice((1, 2, 3))):
        with scratch() as folder, train(folder, "--procs", 4, *ENDLESS, *LONG_PASSES) as run:
            seconds = kill_one_of_4(run, victim, after="step 5/")
            check(seconds < 5, "ended", seconds, "s after the death", run.tail())
            of_victim = check_positions(folder, victim)
            positions += of_victim
            # Rank 0 says on the console what it noticed; where it was the victim the first other rank's words are told.
            check(re.search(r"after step \d+, .*unit", run.text()), f"the console does not say where another rank was: {run.text()[-2000:]}")
            print(f"  SIGKILL to rank {victim} of 4: ended in {seconds:.2f} s; {of_victim} of 3 say the place in the schedule", flush=True)
    check(positions > 0, "no rank says a stage and the place in its schedule")
    restarts_give_the_same_losses(PIPELINE)


def a_rank_of_a_pipeline_is_stopped():
    """SIGSTOP to a rank: after run.timeout the others end, name it, and say where in the schedule they were."""
    positions = 0
    for victim in (random.choice((0, 1)), random.choice((2, 3))):
        with scratch() as folder, train(folder, "--procs", 4, *ENDLESS, *LONG_PASSES, *settings(run__timeout=5)) as run:
            run.wait_for_text("step 5/")
            time.sleep(0.3 * random.random())
            pid = run.ranks()[victim]
            send(pid, signal.SIGSTOP)
            stopped_at = time.monotonic()
            check(run.wait(5 + 3 * END_LIMIT) == 3, run.tail())
            seconds = time.monotonic() - stopped_at
            headline = next(line for line in run.text().splitlines() if line.startswith("error: [launch.local]"))
            check(headline.startswith(f"error: [launch.local] rank {victim} of 4 (pid {pid}) ") and "it is stopped (SIGSTOP" in headline, headline)
            of_victim = check_positions(folder, victim)
            positions += of_victim
            print(f"  SIGSTOP to rank {victim} of 4: ended in {seconds:.2f} s; {of_victim} of 3 say the place in the schedule", flush=True)
            run.check_nothing_left()
    check(positions > 0, "no rank says a stage and the place in its schedule")


def a_rank_of_a_layout_dies(layout, operation):
    for victim in (0, random.choice((1, 2, 3))):
        with scratch() as folder, train(folder, "--procs", 4, *ENDLESS, *layout) as run:
            seconds = kill_one_of_4(run, victim, after="step 13/")
            for rank in {0, 1, 2, 3} - {victim}:
                log = (folder / f"run/logs/rank-{rank}.log").read_text()
                named = re.search(rf"error: \[({operation})\] (no sign of life from )?rank {victim}[:,] ", log)
                check(named, f"rank {rank} does not name rank {victim} and what it waited for:", log[-1000:])
            print(f"  SIGKILL to rank {victim} of 4: ended in {seconds:.2f} s; rank {rank} in {named[1]}", flush=True)
    restarts_give_the_same_losses(layout)


def restarts_give_the_same_losses(layout):
    with scratch() as folder:
        keys = settings(train__steps=200, train__eval_every_epochs=0, checkpoint__every_steps=20, run__timeout=15)
        train(folder, "--procs", 4, *keys, *layout, run="whole").done()
        with train(folder, "--procs", 4, "--max-restarts", 2, *keys, *layout) as run:
            for step, victim in ((45, random.choice((0, 1))), (125, random.choice((2, 3)))):
                run.wait_for_step(step, folder / "run")
                send(run.ranks()[victim], signal.SIGKILL)
            check(run.wait(120) == 0, run.tail())
            check("restart 2 of 2" in run.text(), run.tail())
        check_same_losses(losses(folder / "run"), losses(folder / "whole"))


def one_rank_out_of_memory():
    """Rank 1 may not have what its evaluation needs: it says so, rank 0 does not wait for it."""
    keys = settings(train__steps=1000000, train__eval_every_steps=50, train__eval_batch=4096, model__image_size=64,
                    data__source="fake:8192", data__prefetch=1)
    with scratch() as folder, train(folder, "--procs", 2, *keys) as run:
        run.wait_for_step(5, folder / "run")
        pid = run.ranks()[1]
        mapped = int(re.search(r"VmSize:\s+(\d+) kB", open(f"/proc/{pid}/status").read())[1]) << 10
        resource.prlimit(pid, resource.RLIMIT_AS, (mapped + (96 << 20), mapped + (96 << 20)))
        code = run.wait(60)
        check(code == 2, "exit 2 was expected:", code, run.tail())
        check(f"rank 1 of 2 (pid {pid}) ended with exit code 2" in run.text(), run.tail())
        check("out of memory on rank 1/2" in run.text(), run.tail())
        run.check_nothing_left()


if __name__ == "__main__":
    main(random_moments, one_rank_throws, logs_end_with_a_whole_line, resumes_after_a_kill,
         a_rank_of_a_tensor_group_dies, a_rank_of_a_pipeline_dies, a_rank_of_a_pipeline_is_stopped,
         one_rank_out_of_memory)
