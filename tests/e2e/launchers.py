# SPDX-License-Identifier: Apache-2.0
"""Ranks that others start: torchrun, mpirun, srun, and RANK/WORLD_SIZE/MASTER_ADDR/MASTER_PORT set by hand.

Under each, two ranks train, by every kind of layout; and when one of them is killed, the other ends within seconds and names it.
"""
import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import time

from harness import (END_LIMIT, PROGRAM, SOURCE, Missing, Run, Skip, check, check_same_losses, free_port, is_zombie, losses, main,
                     scratch, send, settings, summary, tiny_recipe, train)
from peers import peers_python

SLURM = SOURCE / "tests/launch/local_slurm.sh"


@contextlib.contextmanager
def torchrun(folder, command):
    words = [peers_python("torch"), "-m", "torch.distributed.run", "--nproc-per-node=2", "--no-python"]
    words += ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    with Run([*words, *command], folder, {"OMP_NUM_THREADS": "1"}) as run:
        yield run, [run]


@contextlib.contextmanager
def mpirun(folder, command):
    if shutil.which("mpirun") is None:
        raise Missing("mpirun is not installed (apt-get install openmpi-bin)")
    # Its session folder holds a socket, whose path must be short.
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-x", "TESSERA_E2E_RUN", "-n", "2"]
    with Run([*words, *command], folder) as run:
        yield run, [run]


@contextlib.contextmanager
def srun(folder, command):
    if os.getuid() != 0:
        raise Skip("a Slurm of our own needs root")
    if any(shutil.which(name) is None for name in ("srun", "slurmctld", "slurmd", "munged")):
        raise Missing("a Slurm of our own needs slurm-wlm and munge (apt-get install slurm-wlm munge)")
    cluster = folder / "slurm"
    started = subprocess.run([SLURM, "start", cluster], capture_output=True, text=True, timeout=60)
    if started.returncode != 0:
        raise Missing(f"local_slurm.sh start: {started.stderr.strip()}")
    try:
        environment = {"SLURM_CONF": f"{cluster}/slurm.conf"}
        # Without --kill-on-bad-exit: Tessera itself notices that a rank is gone.
        with Run(["srun", "-n", "2", *command], folder, environment) as run:
            yield run, [run]
    finally:
        subprocess.run([SLURM, "stop", cluster], capture_output=True, timeout=60, check=True)


@contextlib.contextmanager
def by_hand(folder, command):
    port = str(free_port())
    environment = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(Run(command, folder, {**environment, "RANK": str(rank)})) for rank in (0, 1)]
        yield runs[0], runs


LAUNCHERS = {"torchrun": torchrun, "mpirun": mpirun, "srun": srun, "by hand": by_hand}


def command_of(folder, **keys):
    values = {"run__dir": folder / "run", "train__steps": 3, **keys}
    return [PROGRAM, "train", tiny_recipe(folder), *settings(**values)]


LAYOUTS = ({}, {"parallel__tensor": 2}, {"parallel__pipeline": 2, "parallel__micro_batches": 2})


def trains(name):
    """Two ranks by each layout, with one rank's losses."""
    with scratch() as folder:
        train(folder, "--set", "train.steps=3", run="one").done()
        for number, keys in enumerate(LAYOUTS):
            here = folder / f"layout_{number}"
            here.mkdir()
            with LAUNCHERS[name](here, command_of(here, **keys)) as (_, runs):
                for run in runs:
                    check("\033" not in run.done(), name, keys, "drew on a file" + run.tail())
                found = summary(here / "run")
                check(found["world_size"] == 2 and found["steps"] == 3, name, keys, found)
                plan = found["plan"]
                check(plan.get("stages", 1) == keys.get("parallel__pipeline", 1), name, keys, plan)
                tensor = max(unit.get("tensor", 1) for unit in plan["units"])
                check(tensor == keys.get("parallel__tensor", 1), name, keys, plan)
                check_same_losses(losses(here / "run"), losses(folder / "one"), tolerance=1e-4)
                for run in runs:
                    run.check_nothing_left()


# How the launcher, or else the surviving rank itself, names the dead one.
NAMED = {
    "torchrun": r"rank +: {0} \(local_rank: {0}\)\s+exitcode +: -9",
    "mpirun": r"process rank {0} with PID \d+ .*\s*exited on signal 9",
    "srun": r"task {0}: Killed",
    "by hand": r"(?!)",
}
SILENT = [r"rank 0, which holds the rendezvous, is gone", r"no sign of life from rank 1"]


def is_gone(pid):
    return is_zombie(pid) or not pathlib.Path(f"/proc/{pid}").exists()


def dies(name, victim):
    """Rank `victim` is killed: the other one ends within 10 s, not with success, and the dead one is named."""
    with scratch() as folder, LAUNCHERS[name](folder, command_of(folder, train__steps=1000000)) as (first, runs):
        first.wait_for_step(3, folder / "run")
        ranks = {rank: pid for run in runs for rank, pid in run.ranks().items()}
        check(sorted(ranks) == [0, 1], name, ranks)
        for run in runs:
            run.note_sockets()
        killed_at = time.monotonic()
        send(ranks[victim], signal.SIGKILL)
        while not is_gone(ranks[1 - victim]) and time.monotonic() < killed_at + END_LIMIT:
            time.sleep(0.02)
        seconds = time.monotonic() - killed_at
        check(is_gone(ranks[1 - victim]), name, f"rank {1 - victim} still runs after {seconds:.1f} s")
        for run in runs:
            check(run.wait(30) != 0, name, "gave exit 0" + run.tail())  # launchers take their time
            run.check_nothing_left(5)
        text = "".join(run.text() for run in runs)
        own = re.search(SILENT[victim], text) is not None
        check(own or re.search(NAMED[name].format(victim), text), name, f"does not name rank {victim}\n" + text)
        print(f"  {name}: rank {victim} killed, the other ended after {seconds:.2f} s"
              f"{', naming it' if own else ''}", flush=True)


def torchrun_trains():
    trains("torchrun")


def torchrun_dies():
    for victim in (0, 1):
        dies("torchrun", victim)


def mpirun_trains():
    trains("mpirun")


def mpirun_dies():
    for victim in (0, 1):
        dies("mpirun", victim)


def srun_trains():
    trains("srun")


def srun_dies():
    for victim in (0, 1):
        dies("srun", victim)


def by_hand_trains():
    trains("by hand")


def by_hand_dies():
    for victim in (0, 1):
        dies("by hand", victim)


def by_hand_stopped():
    """Rank 0 is stopped and its connections stay: the other one ends soon after run.timeout and names it."""
    keys = {"train__steps": 1000000, "run__timeout": 5}
    with scratch() as folder, by_hand(folder, command_of(folder, **keys)) as (first, runs):
        first.wait_for_step(3, folder / "run")
        send(first.pid, signal.SIGSTOP)
        code = runs[1].wait(5 + 2 * END_LIMIT)
        check(code == 3, "exit 3 was expected:", code, runs[1].tail())
        check("rank 0, which holds the rendezvous, does not answer" in runs[1].text(), runs[1].tail())
        check(".cc:" not in runs[1].text(), "a place in another project's sources", runs[1].tail())


def by_hand_waits():
    """Rank 0 never comes, or its port is a mute program's: rank 1 says what it waits for, SIGTERM ends it."""
    for mute in (False, True):
        with scratch() as folder, socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
            if mute:
                taken.listen()
            environment = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            with Run(command_of(folder), folder, environment) as run:
                run.wait_for_text(f"waiting for rank 0 at 127.0.0.1:{port} to {'answer' if mute else 'appear'}")
                send(run.pid, signal.SIGTERM)
                code = run.wait(END_LIMIT)
                check(code == 3 and "stopped by a signal while waiting" in run.text(), code, run.tail())


if __name__ == "__main__":
    main(by_hand_trains, by_hand_dies, by_hand_stopped, by_hand_waits, mpirun_trains, mpirun_dies, srun_trains,
         srun_dies, torchrun_trains, torchrun_dies)
