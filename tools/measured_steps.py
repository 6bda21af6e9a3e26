# SPDX-License-Identifier: Apache-2.0
"""Steps of plans, measured by turns: a training for each plan, whose ranks wait until steps are asked for; a slow link."""
import contextlib
import datetime
import hashlib
import json
import os
import pathlib
import platform
import signal
import subprocess
import time

from blind_plans import Refused

SOURCE = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = SOURCE / "build/dev/bin/tessera"
THROTTLE = {"rate": "10gbit", "burst": "2mb", "latency": "50ms"}  # of both directions together (tc-tbf(8))
RECIPE = """name = "blind"
[model]
preset = "{model}"
[data]
source = "fake:1024"
[train]
steps = 1
clip = 1.0
[optimizer]
weight_decay = 0.1
[run]
threads = 1
"""


def write(path, value):
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(json.dumps(value, indent=1) + "\n")
    temporary.replace(path)


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def said(*words):
    result = subprocess.run([str(word) for word in words], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if result.returncode != 0:
        raise Refused(f"{' '.join(str(word) for word in words)} failed: {' '.join(result.stdout.split())[-300:]}")
    return result.stdout


def machine():
    models = [line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return {"host": platform.node(), "processor": models[0] if models else platform.processor(), "cores": os.cpu_count(),
            "kernel": platform.release()}


def cpu_ticks():
    """(all, stolen by the hypervisor) of all CPUs since the start of the machine: proc_stat(5)."""
    fields = [int(word) for word in pathlib.Path("/proc/stat").read_text().split()[1:9]]
    return sum(fields), fields[7]


def available_bytes():
    (kilobytes,) = [int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemAvailable:")]
    return 1024 * kilobytes


@contextlib.contextmanager
def throttled_link():
    """Words before a command that make it run behind a slow loopback interface."""
    name = f"tessera-blind-{os.getpid()}"
    said("ip", "netns", "add", name)
    try:
        said("ip", "-n", name, "link", "set", "lo", "up")
        limits = [word for pair in THROTTLE.items() for word in pair]
        said("tc", "-n", name, "qdisc", "replace", "dev", "lo", "root", "tbf", *limits)
        yield ["ip", "netns", "exec", name]
    finally:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)


@contextlib.contextmanager
def links():
    """A function from a transport to the words before a command; the throttled link is made when it is first needed."""
    with contextlib.ExitStack() as stack:
        made = []

        def words(transport):
            if transport == "throttled" and not made:
                made.append(stack.enter_context(throttled_link()))
            return made[0] if transport == "throttled" else []

        yield words


def set_words(sets, transport):
    shared = "true" if transport == "shared memory" else "false"
    return [word for one in [*sets, f"run.shared_memory={shared}"] for word in ("--set", one)]


def recipe_of(folder, model):
    path = folder / f"{model.replace('/', '')}.toml"
    path.write_text(RECIPE.format(model=model))
    return path


class Training:
    """A plan's ranks, stopped until steps are asked for: sockets that wait wake a hundred times a second, and several
    trainings took up to 7 % of two cores."""

    def __init__(self, program, folder, plan, ranks, link):
        self.name = plan["name"]
        self.pipe = folder / f"requests-{os.getpid()}-{self.name.replace(' ', '-').replace('/', '')}"
        os.mkfifo(self.pipe)
        sets = [*plan["sets"], "run.threads=1", "run.timeout=3600"]
        words = [*link(plan["transport"]), program, "bench", "step", "--model", plan["model"], "--batch", plan["images_per_rank"],
                 "--procs", ranks, *set_words(sets, plan["transport"]), "--requests", self.pipe]
        self.process = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        start_new_session=True)
        # Opened for reading as well, so that this program does not wait for a training that failed.
        self.requests = os.fdopen(os.open(self.pipe, os.O_RDWR), "w")

    def signal_all(self, number):
        """To the program that started the ranks, and to them: all processes of its session."""
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has ended
                session = int(stat.read_text().rsplit(")", 1)[1].split()[3])
                if session == self.process.pid:
                    os.kill(int(stat.parent.name), number)

    def answer(self):
        said_before = []
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
            said_before.append(line.strip())
        raise Refused(f"the training of plan {self.name} ended: {' '.join(said_before[-3:])}")

    def steps(self, count):
        """Seconds of each, and whether something else slowed a core when they began or ended; None: not known."""
        self.signal_all(signal.SIGCONT)
        self.requests.write(f"{count}\n")
        self.requests.flush()
        answer = self.answer()
        self.signal_all(signal.SIGSTOP)
        return answer["step_seconds"], answer.get("slowed")

    def finish(self):
        """Ends the training. The peak memory of each rank in bytes, without the idle program."""
        self.signal_all(signal.SIGCONT)
        self.requests.close()
        memory = [rank["training_memory_bytes"] for rank in self.answer()["ranks"]]
        self.process.wait(60)
        return memory

    def close(self):
        if self.process.poll() is None:
            self.process.kill()  # its ranks end with it
            self.process.wait()
        self.process.stdout.close()
        if not self.requests.closed:
            self.requests.close()
        self.pipe.unlink(missing_ok=True)


def sample(training, steps, patience=10):
    """`steps` of them, taken again for `patience` seconds where something else slowed a core. The first finds caches that
    other trainings have filled, in plans and references alike."""
    began, before = time.monotonic(), cpu_ticks()
    seconds, slowed = training.steps(steps)
    attempts = 1
    while slowed and time.monotonic() - began < patience:
        seconds, slowed = training.steps(steps)
        attempts += 1
    after = cpu_ticks()
    looked = {} if slowed is None else {"slowed": slowed}
    return {"name": training.name, "seconds": seconds, **looked, "attempts": attempts,
            "steal": (after[1] - before[1]) / max(after[0] - before[0], 1), "load": os.getloadavg()[0]}
