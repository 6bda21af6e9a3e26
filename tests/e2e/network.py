# SPDX-License-Identifier: Apache-2.0
"""Three hosts, as network namespaces at one switch, between which the network fails: every rank ends in time and names the ranks
and hosts that do not reach each other. A job that is stopped and continued, or that saves for longer than run.timeout, goes on.

Needs root and Debian's iproute2. The namespaces are this test's and gone at its end.
"""
import contextlib
import itertools
import os
import signal
import subprocess
import time

from harness import PROGRAM, Run, check, main, scratch, send, settings, summary, tiny_recipe, train
from namespaces import need_namespaces, system

_names = itertools.count()
PORT = 29541
DEAD_HOST_LIMIT = 30.0  # seconds within which a host that is gone must be noticed
LONG = dict(train__steps=1000000, train__eval_every_steps=0, train__eval_every_epochs=0)


def address(rank):
    return f"10.98.0.{rank + 1}"


class Hosts:
    """Namespaces with one network card each, `card`, at 10.98.0.1 and so on, and one with the switch between them."""

    def __init__(self, count=3):
        word = f"tessera-{os.getpid()}-{next(_names)}"
        self.switch = f"{word}-switch"
        self.names = [f"{word}-{rank}" for rank in range(count)]

    def __enter__(self):
        try:
            system("ip", "netns", "add", self.switch)
            system("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
            system("ip", "-n", self.switch, "link", "set", "bridge", "up")
            for rank, name in enumerate(self.names):
                system("ip", "netns", "add", name)
                system("ip", "-n", self.switch, "link", "add", f"port{rank}", "type", "veth", "peer", "name", "card", "netns", name)
                system("ip", "-n", self.switch, "link", "set", f"port{rank}", "master", "bridge", "up")
                system("ip", "-n", name, "address", "add", f"{address(rank)}/24", "dev", "card")
                system("ip", "-n", name, "link", "set", "card", "up")
                system("ip", "-n", name, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in (*self.names, self.switch):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def lose(self, rank):
        """Nothing reaches this host any more, and nothing comes from it: no word of it to anyone, as when its power fails."""
        system("ip", "-n", self.switch, "link", "set", f"port{rank}", "nomaster")

    def drop(self, a, b):
        """A firewall that drops what these two send each other."""
        for one, other in ((a, b), (b, a)):
            system("ip", "-n", self.names[one], "neigh", "replace", address(other), "lladdr", "02:00:00:00:00:99", "dev", "card",
                   "nud", "permanent")

    def reject(self, a, b):
        """There is no way from one to the other, and the kernel says so."""
        for one, other in ((a, b), (b, a)):
            system("ip", "-n", self.names[one], "route", "add", "unreachable", f"{address(other)}/32")

    @contextlib.contextmanager
    def ranks(self, folder, **keys):
        """A training on all hosts, as a launcher that sets RANK and WORLD_SIZE starts it."""
        runs = []
        recipe = tiny_recipe(folder)
        try:
            for rank, name in enumerate(self.names):
                environment = {"RANK": str(rank), "WORLD_SIZE": str(len(self.names)), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                               "MASTER_ADDR": address(0), "MASTER_PORT": str(PORT)}
                words = ["train", recipe, *settings(run__dir=folder / "run", train__batch=24, **{**LONG, **keys})]
                runs.append(Run(["ip", "netns", "exec", name, PROGRAM, *words], folder, environment))
            yield runs
        finally:
            for run in runs:
                run.kill()


def check_ended(runs, limit, *texts):
    """All end with exit code 3 within the limit, and say all of the texts that they are given."""
    start = time.monotonic()
    for run in runs:
        code = run.wait(limit + 30)
        check(code == 3, "exit 3 was expected:", code, run.tail())
        check("terminate" not in run.text(), run.tail())
        for text in texts:
            check(text in run.text(), "expected", repr(text), run.tail())
    seconds = time.monotonic() - start
    print(f"  all ended after {seconds:.1f} s", flush=True)
    check(seconds <= limit, f"expected the end within {limit} s, and it took {seconds:.1f} s", runs[0].tail())


def hosts_that_do_not_reach_each_other():
    """Both reach rank 0, where ranks meet. Connecting takes run.timeout at most, and every rank names the pair."""
    need_namespaces()
    for cut, reason in ((Hosts.drop, "no answer within 4 s"), (Hosts.reject, "no route to host")):
        with Hosts() as hosts, scratch() as folder:
            cut(hosts, 1, 2)
            with hosts.ranks(folder, run__timeout=6) as runs:
                # The first second is the start of the program and the data.
                check_ended(runs, 6 + 5, f"rank 1 ({address(1)}) cannot reach rank 2 ({address(2)}:", f"): {reason}",
                            "allow TCP connections on all ports between the hosts of a run")


def a_host_that_is_gone():
    """Its power fails in the middle of the training: noticed long before run.timeout (600 s), by name."""
    need_namespaces()
    for lost in (2, 0):
        with Hosts() as hosts, scratch() as folder, hosts.ranks(folder) as runs:
            runs[0].wait_for_step(20, folder / "run")
            hosts.lose(lost)
            left = [run for rank, run in enumerate(runs) if rank != lost]
            # 2 s until the others answer, and 5 s for the store or the host to be asked
            check_ended(left, DEAD_HOST_LIMIT + 7, *(["no sign of life from rank 2"] if lost == 2 else ["rank 0, which holds the rendezvous,"]),
                        f"cannot reach rank {lost} ({address(lost)}:")


def a_network_that_falls_apart():
    """Two hosts lose each other in the middle of the training, and both still reach rank 0: the pair is named."""
    need_namespaces()
    with Hosts() as hosts, scratch() as folder, hosts.ranks(folder) as runs:
        runs[0].wait_for_step(20, folder / "run")
        hosts.drop(1, 2)
        check_ended(runs, DEAD_HOST_LIMIT + 7)
        pairs = [f"rank {a} ({address(a)}) cannot reach rank {b} ({address(b)}:" for a, b in ((1, 2), (2, 1))]
        for run in (runs[0], runs[1]):  # rank 0 reaches both, and says what they say
            check(any(pair in run.text() for pair in pairs), run.tail())


def a_stopped_job_goes_on():
    """All ranks are stopped for longer than run.timeout (scontrol suspend, Ctrl-Z) and continued: none counts as dead."""
    for shared in ("true", "false"):
        with scratch() as folder:
            keys = settings(train__steps=400, train__eval_every_steps=0, train__eval_every_epochs=0, run__timeout=3, run__shared_memory=shared)
            with train(folder, "--procs", 3, "--set", "train.batch=24", *keys) as run:
                run.wait_for_step(20, folder / "run")
                ranks = run.ranks().values()
                for pid in ranks:
                    send(pid, signal.SIGSTOP)
                time.sleep(7)
                for pid in ranks:
                    send(pid, signal.SIGCONT)
                run.done()
            check(summary(folder / "run")["steps"] == 400)


def a_stopped_rank_is_named():
    """The first line of the failure names the rank at fault, not the one that noticed it."""
    for shared in ("true", "false"):
        with scratch() as folder, train(folder, "--procs", 3, "--set", "train.batch=24",
                                        *settings(run__timeout=3, run__shared_memory=shared, **LONG)) as run:
            run.wait_for_step(20, folder / "run")
            send(run.ranks()[1], signal.SIGSTOP)
            check(run.wait(60) == 3, run.tail())
            headline = next(line for line in run.text().splitlines() if line.startswith("error: [launch.local]"))
            check(headline.startswith("error: [launch.local] rank 1 of 3 (pid ") and "it is stopped (SIGSTOP" in headline, headline)
            check("no sign of life from rank 1" in run.text() + (folder / "run/logs/rank-2.log").read_text(), run.tail())


if __name__ == "__main__":
    main(hosts_that_do_not_reach_each_other, a_host_that_is_gone, a_network_that_falls_apart, a_stopped_job_goes_on, a_stopped_rank_is_named)
