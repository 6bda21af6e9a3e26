# SPDX-License-Identifier: Apache-2.0
"""Two hosts, as network namespaces joined by one cable: bytes on the wire, and communication behind computation.

Needs root and Debian's iproute2. The namespaces are this test's own and gone at its end.
"""
import contextlib
import itertools
import json
import os
import statistics
import subprocess

from harness import PROGRAM, Run, check, main, scratch, summary, tessera, tiny_recipe
from namespaces import need_namespaces, system

_names = itertools.count()
PORT = 29533


class Hosts:
    """Two namespaces with one network card each, `wire`, at 10.99.0.1 and 10.99.0.2."""

    def __init__(self):
        word = f"tessera-{os.getpid()}-{next(_names)}"
        self.names = [f"{word}-0", f"{word}-1"]

    def __enter__(self):
        try:
            for name in self.names:
                system("ip", "netns", "add", name)
            system("ip", "-n", self.names[0], "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns",
                   self.names[1])
            for rank, name in enumerate(self.names):
                system("ip", "-n", name, "address", "add", f"10.99.0.{rank + 1}/24", "dev", "wire")
                system("ip", "-n", name, "link", "set", "wire", "up")
                system("ip", "-n", name, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def throttle(self, bytes_per_second):
        for name in self.names:
            system("tc", "-n", name, "qdisc", "replace", "dev", "wire", "root", "tbf", "rate",
                   f"{int(bytes_per_second * 8)}bit", "burst", "1mb", "latency", "50ms")

    def sent_bytes(self, rank):
        (link,) = json.loads(system("ip", "-n", self.names[rank], "-s", "-j", "link", "show", "wire"))
        return link["stats64"]["tx"]["bytes"]

    @contextlib.contextmanager
    def ranks(self, folder, *words):
        """The program on both hosts, as a launcher that sets RANK and WORLD_SIZE starts it."""
        runs = []
        try:
            for rank, name in enumerate(self.names):
                environment = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                               "MASTER_ADDR": "10.99.0.1", "MASTER_PORT": str(PORT)}
                runs.append(Run(["ip", "netns", "exec", name, PROGRAM, *words], folder, environment))
            yield runs
        finally:
            for run in runs:
                run.kill()


def counted_bytes_are_the_interfaces():
    """What a run counts, for every level, is what its card sent, within 2 %."""
    need_namespaces("tc")
    for level in ("replicate", "zero1", "zero2", "zero3"):
        with Hosts() as hosts, scratch() as folder:
            before = hosts.sent_bytes(0)
            words = ["train", tiny_recipe(folder), "--set", f"run.dir={folder}/run", "--set", f"shard.level={level}",
                     "--set", "model.width=512", "--set", "model.mlp_width=2048", "--set", "model.depth=4",
                     "--set", "train.accumulation=2", "--set", "train.steps=8"]
            with hosts.ranks(folder, *words) as runs:
                for run in runs:
                    run.done(120)
            check(summary(folder / "run")["transport"] == "TCP", "networks of their own make two hosts")
            sent = hosts.sent_bytes(0) - before
            counted = sum(kind["bytes_sent"] for axis in summary(folder / "run")["communication"].values()
                          for kind in axis.values())
            print(f"  {level}: counted {counted}, the card sent {sent} ({100 * (sent / counted - 1):+.2f} %)", flush=True)
            check(abs(sent / counted - 1) <= 0.02, level, counted, sent)


def bench_shard(hosts, folder, rounds, images):
    with hosts.ranks(folder, "bench", "shard", "--model", "B/16", "--batch", images, "--rounds", rounds, "--set", "run.threads=1",
                     "--output", folder / "bench.json") as runs:
        for run in runs:
            run.done(900)
    found = json.loads((folder / "bench.json").read_text())
    print("  ", {name: round(value, 3) for name, value in found.items() if isinstance(value, float)}, flush=True)
    return found


def communication_hides_behind_computation():
    """On a cable so slow that messages alone take 0.5 to 1.0 of the computation, at least 0.8 of them hide."""
    need_namespaces("tc")
    with Hosts() as hosts, scratch() as folder:
        found = bench_shard(hosts, folder, 1, 8)
        # Many, so that TCP's own share of the cores, which cannot hide, is small; but about 24 s a step on a slow machine.
        images = max(8, min(32, round(8 * 24 / found["compute_seconds"])))
        rate = sum(found["bytes_sent"].values()) / (0.75 * found["compute_seconds"] * images / 8)
        for rounds in (1, 3, 3):  # the first finds out what of the rate TCP makes use of
            hosts.throttle(rate)
            found = bench_shard(hosts, folder, rounds, images)
            share = found["communication_seconds"] / found["compute_seconds"]
            if rounds > 1 and 0.5 <= share <= 1.0:
                break
            rate *= share / 0.75
        check(0.5 <= share <= 1.0, "communication takes", share, "of the computation")
        check(found["hidden_share"] >= 0.8, "hidden share", found["hidden_share"])


def exchanges_of_cut_layers_hide_behind_products():
    """S/16 at tensor 2: of what a slow cable needs for a step's exchanges, 0.5 to 0.8 of the computation, at least 0.7 hide."""
    need_namespaces("tc")
    with Hosts() as hosts, scratch() as folder:
        pipe = folder / "requests"
        os.mkfifo(pipe)
        words = ["bench", "step", "--model", "S/16", "--batch", 8, "--set", "parallel.tensor=2", "--set", "run.threads=1",
                 "--requests", pipe]
        # Opened for reading as well, so that this program does not wait for a run that failed.
        with hosts.ranks(folder, *words) as runs, open(os.open(pipe, os.O_RDWR), "w", buffering=1) as requests:
            answered = 0

            def answers():
                return [json.loads(line)["step_seconds"] for line in runs[0].text().splitlines() if line.startswith("{")]

            def step_seconds(count):
                """The median of `count` steps after one that is not counted."""
                nonlocal answered
                requests.write(f"{1 + count}\n")
                runs[0].wait_for(lambda: len(answers()) > answered, "steps")
                answered += 1
                return statistics.median(answers()[-1][1:])

            step_seconds(1)
            before = hosts.sent_bytes(0)
            computing = step_seconds(3)
            sent = (hosts.sent_bytes(0) - before) / 4
            messages = 0.6 * computing
            shares, hidden = [], []
            for _ in range(7):
                hosts.throttle(1e10)
                fast = step_seconds(3)
                hosts.throttle(sent / messages)
                slow = step_seconds(3)
                shares.append(messages / fast)
                hidden.append(1 - (slow - fast) / messages)
            requests.close()
            for run in runs:
                run.done(60)
        print(f"  {sent / 1e6:.0f} MB a step; messages / computation {statistics.median(shares):.2f}, hidden",
              *(f"{share:.2f}" for share in hidden), flush=True)
        check(0.45 <= statistics.median(shares) <= 0.9, "messages take", shares, "of the computation")
        check(statistics.median(hidden) >= 0.7, "hidden", hidden)


def links_between_hosts_are_the_cables():
    """plan profile-hosts finds the rate of a throttled cable, which the profile of one host does not know."""
    need_namespaces("tc")
    rate = 2e8
    with Hosts() as hosts, scratch() as folder:
        recipe, file = tiny_recipe(folder), folder / "profile.json"
        tessera("plan", "profile", recipe, "--procs", 1, "--rounds", 1, "--batches", "1,2", "-o", file, folder=folder).done(60)
        predict = ("plan", "predict", recipe, "--profile", file, "--ranks", 2, "--set", "train.batch=4", "--set", "shard.level=zero3")
        refused = tessera(*predict, folder=folder)
        check(refused.wait(30) == 2 and "tessera plan profile-hosts" in refused.text(), refused.text())
        hosts.throttle(rate)
        with hosts.ranks(folder, "plan", "profile-hosts", recipe, "--profile", file, "--rounds", 2) as runs:
            for run in runs:
                run.done(300)
            print(runs[0].text(), flush=True)
        links = {link["operation"]: link for link in json.loads(file.read_text())["links"]}
        check(set(links) == {"all_gather", "reduce_scatter", "exchange", "send"}, links)
        for name, link in links.items():
            check(link["kind"] == "hosts" and link["transport"] == "TCP" and link["ranks"] == 2, link)
            # Short messages pass in the queue's burst; of two long ones the difference is the cable's.
            first, second = link["samples"][-2:]
            found = (second["bytes"] - first["bytes"]) / (second["seconds"] - first["seconds"])
            # Less where other programs use the cores, and where ranks add up what has come.
            check(0.3 * rate <= found <= 1.1 * rate, name, found, "bytes a second, the cable", rate)
        tessera(*predict, folder=folder).done(60)


main(counted_bytes_are_the_interfaces, communication_hides_behind_computation, exchanges_of_cut_layers_hide_behind_products,
     links_between_hosts_are_the_cables)
