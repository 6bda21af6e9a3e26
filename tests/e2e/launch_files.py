# SPDX-License-Identifier: Apache-2.0
"""The files of launch/, each run for real on "hosts" of this machine: a Slurm of two nodes, an sshd on two loopback
addresses, mpirun with a hosts file, two agents of torchrun.

Under each, two ranks train with the losses of an uninterrupted local run; and when one of them is killed all end, with a
failure that names it.
"""
import contextlib
import functools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

from harness import (PROGRAM, SOURCE, Missing, Run, Skip, check, check_same_losses, free_port, is_zombie, losses, main, rows, scratch,
                     send, settings, summary, tiny_recipe, train, verify)
from peers import peers_python

LAUNCH = SOURCE / "launch"
SLURM = SOURCE / "tests/launch/local_slurm.sh"
HOSTS = ("127.0.0.1", "127.0.0.2")
STEPS = 60
ENDLESS = 1000000
# Slurm counts its jobs' time in minutes: this is the one of the test's job, less what is to be trained in a turn.
MINUTE = 60


def keys_of(steps, **more):
    return settings(train__steps=steps, train__eval_every_epochs=0, **more)


@functools.cache
def uninterrupted(*keys):
    """The losses of two local ranks with these words, and the seconds that they trained."""
    with scratch() as folder:
        train(folder, "--procs", 2, *keys).done(120)
        return losses(folder / "run"), summary(folder / "run")["train_seconds"]


def wait_until(condition, what, seconds, tail=lambda: ""):
    end = time.monotonic() + seconds
    while not condition():
        check(time.monotonic() < end, f"{what}: not within {seconds} s", tail())
        time.sleep(0.05)


def text_of(path):
    return path.read_text(errors="replace") if path.exists() else ""


def check_whole_run(run_dir):
    found = summary(run_dir)
    check(found["world_size"] == 2 and found["steps"] == STEPS, found)
    check_same_losses(losses(run_dir), uninterrupted(*keys_of(STEPS))[0])


def kill_one(run, run_dir, named, victim=1):
    """Kills a rank in mid-training: all end in a failure whose text names it, and nothing is left."""
    run.wait_for_step(3, run_dir)
    run.note_sockets()
    send(run.ranks()[victim], signal.SIGKILL)
    check(run.wait(30) != 0, "gave exit 0" + run.tail())
    check(re.search(named, run.text()), f"{named} is not in" + run.tail())
    run.check_nothing_left(5)


@contextlib.contextmanager
def started(words, folder, environment, steps):
    """Yields the run of these words and its folder, and what starts it again with --resume."""
    start = functools.partial(Run, folder=folder, env=environment)
    run_dir = folder / "run"
    with start([*words, *keys_of(steps, run__dir=run_dir)]) as run:
        yield run, run_dir, lambda: start([*words, *keys_of(STEPS, run__dir=run_dir), "--resume"])


def saves_and_goes_on(run, run_dir, again):
    """SIGTERM reaches both ranks: they save, and a second call goes on."""
    run.wait_for_step(10, run_dir)
    send(run.pid, signal.SIGTERM)
    check("stopped early; state saved in " in run.done(30), run.tail())
    run.check_nothing_left()
    with again() as second:
        check("resumed from " in second.done(), second.tail())
    check_whole_run(run_dir)


# Slurm


@contextlib.contextmanager
def cluster():
    """Two nodes, as the file asks for; yields a folder and what clients need in their environment."""
    if os.getuid() != 0:
        raise Skip("a Slurm of our own needs root")
    if any(shutil.which(name) is None for name in ("sbatch", "slurmctld", "slurmd", "munged")):
        raise Missing("a Slurm of our own needs slurm-wlm and munge (apt-get install slurm-wlm munge)")
    with scratch() as folder:
        place = folder / "slurm"
        started = subprocess.run([SLURM, "start", place], capture_output=True, text=True, timeout=60,
                                 env={**os.environ, "TESSERA_SLURM_NODES": "2"})
        if started.returncode != 0:
            raise Missing(f"local_slurm.sh start: {started.stderr.strip()}")
        try:
            # The nodes' names mean nothing to this host.
            yield folder, {"SLURM_CONF": f"{place}/slurm.conf", "TESSERA": PROGRAM, "MASTER_ADDR": HOSTS[0]}
        finally:
            subprocess.run([SLURM, "stop", place], capture_output=True, timeout=60, check=True)


def submit(folder, environment, *keys):
    """Submits the job; returns the run of sbatch (whose word its ranks carry), the log and the run's folder."""
    recipe = tiny_recipe(folder)
    words = ["sbatch", "--time=1", LAUNCH / "slurm.sbatch", recipe, *keys]
    run = Run(words, folder, environment)
    number = run.done().split()[-1]
    return run, folder / f"tessera-{number}.log", folder / f"runs/tessera-{number}"


def job_state(environment, log):
    """COMPLETED, REQUEUED, ... and "" where Slurm has forgotten it."""
    number = log.stem.split("-")[1]
    told = subprocess.run(["scontrol", "--oneliner", "show", "job", number], capture_output=True, text=True,
                          env={**os.environ, **environment}).stdout
    found = re.search(r"JobState=(\w+)", told)
    return found[1] if found else ""


def slurm_saves_requeues_and_finishes():
    """Turns that are too short for the training: each saves in time, the next goes on, the last finishes."""
    # Large steps: how long they take depends less on what else the machine does.
    keys = keys_of(720, train__batch=1024, data__source="fake:4096")
    expected, seconds = uninterrupted(*keys)
    with cluster() as (folder, environment):
        turn = min(3 + 0.5 * seconds, 50)  # start and training; a turn that gets less far leaves one more
        run, log, run_dir = submit(folder, environment, *keys, *settings(run__time_margin=MINUTE - turn))
        with run:
            wait_until(lambda: (run_dir / "summary.json").exists(), "a finished run", 240, lambda: text_of(log))
            wait_until(lambda: job_state(environment, log) == "COMPLETED", "a completed job", 20, lambda: text_of(log))
            run.check_nothing_left(10)
        text = text_of(log)
        turns = text.count("the job goes back into the queue")
        check(turns >= 1, "it was never requeued\n", text)
        check(text.count("stopped early; state saved in ") == turns and text.count("resumed from ") == turns, text)
        check(f"/runs/{run_dir.name}/checkpoints: starting anew" in text, text)
        check(summary(run_dir)["world_size"] == 2, summary(run_dir))
        check_same_losses(losses(run_dir), expected)
        verify(run_dir, folder)
        print(f"  slurm: {turns + 1} turns of about {turn:.0f} s for {seconds:.0f} s of training", flush=True)


def slurm_names_a_dead_rank():
    """A rank is killed: the job fails, names it, and is not tried again. A cancelled one is not, either."""
    with cluster() as (folder, environment):
        run, log, run_dir = submit(folder, environment, *keys_of(ENDLESS))
        with run:
            wait_until(lambda: (run_dir / "metrics.jsonl").exists() and rows(run_dir), "a step", 60, lambda: text_of(log))
            send(run.ranks()[1], signal.SIGKILL)
            wait_until(lambda: job_state(environment, log) == "FAILED", "a failed job", 30, lambda: text_of(log))
            check(re.search(r"task 1: Killed", text_of(log)), text_of(log))
            check("goes back into the queue" not in text_of(log), text_of(log))
            run.check_nothing_left(10)
        run, log, run_dir = submit(folder, environment, *keys_of(ENDLESS))
        with run:
            wait_until(lambda: (run_dir / "metrics.jsonl").exists() and rows(run_dir), "a step", 60, lambda: text_of(log))
            subprocess.run(["scancel", log.stem.split("-")[1]], check=True, env={**os.environ, **environment})
            wait_until(lambda: job_state(environment, log) == "CANCELLED", "a cancelled job", 30, lambda: text_of(log))
            run.check_nothing_left(10)
            check("stopped early; state saved in " in text_of(log), text_of(log))
            check(verify(run_dir, folder) == 1, "a checkpoint was expected")


# ssh


def sshd_program():
    for place in (shutil.which("sshd"), "/usr/sbin/sshd"):
        if place and os.access(place, os.X_OK):
            return place
    raise Skip("sshd is not installed (apt-get install openssh-server)")


def children_of(pid):
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rsplit(")", 1)[1].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return [child for child in found if not is_zombie(child)]


@contextlib.contextmanager
def two_hosts():
    """An sshd of our own on two loopback addresses, with keys of our own; yields a folder and the words that reach them."""
    program = sshd_program()
    port = free_port()
    privileges = pathlib.Path("/run/sshd")  # sshd insists on this empty folder where it runs as root
    made = os.getuid() == 0 and not privileges.exists()
    if made:
        privileges.mkdir(mode=0o755)
    with scratch() as folder:
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
        (folder / "authorized").write_text((folder / "user.pub").read_text())
        (folder / "known").write_text(
            "".join(f"[{host}]:{port} {(folder / 'host.pub').read_text()}" for host in HOSTS))
        (folder / "sshd").write_text(
            f"Port {port}\n" + "".join(f"ListenAddress {host}\n" for host in HOSTS) + f"HostKey {folder}/host\n"
            f"AuthorizedKeysFile {folder}/authorized\nPidFile none\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n")
        (folder / "ssh").write_text(
            f"Host *\nPort {port}\nIdentityFile {folder}/user\nIdentitiesOnly yes\nUserKnownHostsFile {folder}/known\n"
            "GlobalKnownHostsFile none\nBatchMode yes\nLogLevel ERROR\n")
        (folder / "hosts").write_text("# rank 0's first\n" + "".join(f"{host} slots=1\n" for host in HOSTS))
        with open(folder / "sshd.log", "wb") as log:
            sshd = subprocess.Popen([program, "-D", "-e", "-f", folder / "sshd"], stderr=log, stdin=subprocess.DEVNULL)
        try:
            ssh = f"ssh -F {folder}/ssh"
            wait_until(lambda: subprocess.run([*ssh.split(), HOSTS[1], "true"], capture_output=True).returncode == 0,
                       "an answer of sshd", 10, lambda: text_of(folder / "sshd.log"))
            yield folder, ssh, sshd
        finally:
            for child in children_of(sshd.pid):
                send(child, signal.SIGKILL)
            sshd.terminate()
            sshd.wait(10)
            if made:
                privileges.rmdir()


@contextlib.contextmanager
def over_ssh(steps=STEPS):
    with two_hosts() as (folder, ssh, sshd):
        environment = {"SSH": ssh, "TESSERA": PROGRAM, "FORWARD": "TESSERA_E2E_RUN", "MASTER_PORT": str(free_port())}
        words = [LAUNCH / "ssh.sh", folder / "hosts", tiny_recipe(folder)]
        with started(words, folder, environment, steps) as ranks:
            yield ranks
        wait_until(lambda: not children_of(sshd.pid), "an sshd without connections", 5)


def ssh_trains():
    with over_ssh() as (run, run_dir, _):
        run.done()
        check_whole_run(run_dir)


def ssh_names_a_dead_rank():
    with over_ssh(ENDLESS) as (run, run_dir, _):
        kill_one(run, run_dir, r"error: \[launch/ssh.sh\] rank 1 of 2 on 127\.0\.0\.2 ended with exit code 137")


def ssh_passes_signals():
    """Killed, it leaves no rank behind either."""
    with over_ssh() as ranks:
        saves_and_goes_on(*ranks)
    with over_ssh(ENDLESS) as (run, run_dir, _):
        run.wait_for_step(3, run_dir)
        send(run.pid, signal.SIGKILL)
        run.wait()
        run.check_nothing_left(10)
        check("stopped early; state saved in " in text_of(run_dir / "logs/rank-0.log"), text_of(run_dir / "logs/rank-0.log"))


def words_of_refusal():
    with scratch() as folder:
        (folder / "none").write_text("# nobody\n\n")
        for script, words, environment, pattern in (
            ("ssh.sh", ["hosts"], {}, r"\[launch/ssh.sh\] HOSTS RECIPE .*: found 1 words"),
            ("ssh.sh", [folder / "none", "x.toml"], {}, r"\[launch/ssh.sh\] a host in a line of .*: found none"),
            ("ssh.sh", [folder / "hosts", "x.toml"], {"TESSERA": "no-such"}, r"the program no-such: not found"),
            ("openmpi.sh", ["hosts"], {}, r"\[launch/openmpi.sh\] HOSTS RECIPE .*: found 1 words"),
            ("torchrun.sh", [], {}, r"\[launch/torchrun.sh\] RECIPE .*: found no words"),
        ):
            (folder / "hosts").write_text("localhost\n")
            run = Run([LAUNCH / script, *words], folder, environment)
            check(run.wait(10) == 2 and re.search(pattern, run.text()), script, words, run.tail())


# OpenMPI


@contextlib.contextmanager
def over_mpirun(steps=STEPS):
    if shutil.which("mpirun") is None:
        raise Missing("mpirun is not installed (apt-get install openmpi-bin)")
    # Its session folder holds a socket, whose path must be short.
    with scratch() as folder:
        (folder / "hosts").write_text("# rank 0's first\nlocalhost slots=2\n")
        environment = {"TESSERA": PROGRAM, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "TERM": "dumb",
                       "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        words = [LAUNCH / "openmpi.sh", folder / "hosts", tiny_recipe(folder)]
        with started(words, folder, environment, steps) as ranks:
            yield ranks


def openmpi_trains():
    with over_mpirun() as (run, run_dir, _):
        run.done()
        check_whole_run(run_dir)


def openmpi_names_a_dead_rank():
    with over_mpirun(ENDLESS) as (run, run_dir, _):
        kill_one(run, run_dir, r"Process name: \[\[\d+,1\],1\]\s+Exit code: +137")


def openmpi_saves_when_told_to_end():
    with over_mpirun() as ranks:
        saves_and_goes_on(*ranks)


# torchrun


@contextlib.contextmanager
def torchruns(steps=STEPS):
    """Two agents, each with one rank: what two hosts would be."""
    python = peers_python("torch")
    with scratch() as folder:
        environment = {"TORCHRUN": f"{python} -m torch.distributed.run", "TESSERA": PROGRAM, "HOSTS": "2", "RANKS": "1",
                       "HEAD": f"127.0.0.1:{free_port()}"}
        words = [LAUNCH / "torchrun.sh", tiny_recipe(folder), *keys_of(steps, run__dir=folder / "run")]
        with Run(words, folder, environment) as first, Run(words, folder, environment) as second:
            yield first, second, folder / "run"


def torchrun_trains():
    with torchruns() as (first, second, run_dir):
        first.done()
        second.done()
        check_whole_run(run_dir)


def torchrun_names_a_dead_rank():
    with torchruns(ENDLESS) as (first, second, run_dir):
        first.wait_for_step(3, run_dir)
        ranks = {rank: run for run in (first, second) for rank in run.ranks()}
        check(sorted(ranks) == [0, 1], ranks)
        kill_one(ranks[1], run_dir, r"rank +: 1 \(local_rank: 0\)\s+exitcode +: -9")
        check(ranks[0].wait(30) != 0, "the other agent gave exit 0" + ranks[0].tail())
        ranks[0].check_nothing_left(5)


def scripts_are_clean():
    if shutil.which("shellcheck") is None:
        raise Skip("shellcheck is not installed")
    files = sorted(LAUNCH.iterdir())
    found = subprocess.run(["shellcheck", *files], capture_output=True, text=True)
    check(found.returncode == 0, found.stdout)
    for file in files:
        check(len(file.read_text().splitlines()) <= 50, file, "is no longer read at a glance")


if __name__ == "__main__":
    main(scripts_are_clean, words_of_refusal, slurm_saves_requeues_and_finishes, slurm_names_a_dead_rank, ssh_trains,
         ssh_names_a_dead_rank, ssh_passes_signals, openmpi_trains, openmpi_names_a_dead_rank, openmpi_saves_when_told_to_end,
         torchrun_trains, torchrun_names_a_dead_rank)
