# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end tests share: runs of the real program with a tiny model, and a look at /proc for what they leave.

TESSERA_BIN names the program. Every run carries a word of its own in its arguments, by which its processes are found.
"""
import contextlib
import itertools
import json
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("TESSERA_BIN", str(SOURCE / "build/dev/bin/tessera"))
SKIPPED = 77
CONNECTED, LISTENING = "01", "0A"  # as the kernel's tables of sockets write it
END_LIMIT = 10.0  # seconds within which all must have ended after one rank died

TINY = """
name = "tiny"
[model]
image_size = 16
patch_size = 8
width = 32
depth = 2
heads = 2
mlp_width = 64
classes = 10
class_token = false
pool = "gap"
[data]
source = "fake:256"
[train]
batch = 32
steps = 6
log_every = 1
[precision]
compute = "fp32"
[checkpoint]
every_epochs = 0
[run]
threads = 1
"""


class Skip(Exception):
    """Not possible on this machine; the text says why."""


class Missing(Skip):
    """Not possible without something that `./dev test --all` installs: a failure there (TESSERA_NO_SKIP=1)."""


def check(condition, *explanation):
    if not condition:
        raise AssertionError(" ".join(str(part) for part in explanation))


@contextlib.contextmanager
def scratch():
    """A short-lived folder with a short name (sockets lie in some)."""
    with tempfile.TemporaryDirectory(prefix="e2e-") as folder:
        yield pathlib.Path(folder)


def tiny_recipe(folder, text=TINY):
    path = pathlib.Path(folder) / "tiny.toml"
    path.write_text(text)
    return path


_numbers = itertools.count()


class Run:
    """One started command. Its output goes to a file: a pipe would stay open as long as an orphan lives."""

    def __init__(self, words, folder, env=None, **popen):
        self.words = [str(word) for word in words]
        self.token = f"e2e_{os.getpid()}_{next(_numbers)}"
        self.output = pathlib.Path(folder) / f"{self.token}.out"
        # The logs of a start that failed stay in TMPDIR: they go with the folder.
        environment = {**os.environ, "TMPDIR": str(folder), "TESSERA_E2E_RUN": self.token, **(env or {})}
        popen.setdefault("preexec_fn", no_core_dump)
        popen.setdefault("stdin", subprocess.DEVNULL)
        with open(self.output, "wb") as out:
            popen.setdefault("stdout", out)
            popen.setdefault("stderr", out)
            self.process = subprocess.Popen(self.words, env=environment, cwd=folder, **popen)
        self.pid = self.process.pid
        self.sockets = {}  # inode -> port

    def text(self):
        return self.output.read_text(errors="replace")

    def tail(self):
        """The end of its output, to be shown when something went wrong."""
        return "\n... " + self.text()[-3000:]

    def processes(self):
        """pid -> environment of every process of this run."""
        found = {}
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            environment = environment_of(pid)
            if environment.get("TESSERA_E2E_RUN") == self.token and not is_zombie(pid):
                found[pid] = environment
        return found

    def ranks(self):
        """rank -> pid of the ranks that have begun to run the program."""
        found = {}
        for pid, environment in self.processes().items():
            names = ("TESSERA_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
            rank = next((environment[name] for name in names if name in environment), None)
            if rank is not None and program_of(pid) == os.path.realpath(PROGRAM):
                found[int(rank)] = pid
        return found

    def connected(self):
        """The pids of this run that hold a TCP connection."""
        connections = tcp_sockets(CONNECTED)
        return {pid for pid in self.processes() if connections.keys() & sockets_of(pid)}

    def note_sockets(self):
        """Remembers the sockets on which processes of this run listen now."""
        listening = listening_sockets()
        held = set().union(*map(sockets_of, self.processes()))
        self.sockets |= {inode: port for inode, port in listening.items() if inode in held}

    def ended(self):
        return self.process.poll() is not None

    def wait_for(self, condition, what, seconds=120):
        """Polls until `condition()` is true while the run goes on; returns its value."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = condition()
            if value:
                return value
            if self.ended():
                raise AssertionError(f"{what}: the run ended first, exit {self.process.returncode}{self.tail()}")
            time.sleep(0.005)
        raise AssertionError(f"{what}: not within {seconds} s{self.tail()}")

    def wait_for_step(self, step, run_dir, seconds=180):
        """Until the run's files (a terminal shows a bar, no lines) have a row of this step."""
        path = pathlib.Path(run_dir) / "metrics.jsonl"
        self.wait_for(lambda: path.exists() and f'"step":{step},' in path.read_text(), f"step {step}", seconds)

    def wait_for_text(self, text, seconds=180):
        self.wait_for(lambda: text in self.text(), f"'{text}' in the output", seconds)

    def wait(self, seconds=180):
        """The exit code (negative: a signal)."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            tree = {pid: program_of(pid) for pid in self.processes()}
            self.kill()
            raise AssertionError(f"still running after {seconds} s: {self.words} {tree}{self.tail()}") from None

    def done(self, seconds=180):
        """Waits for success; returns the output."""
        code = self.wait(seconds)
        check(code == 0, "exit 0 was expected:", code, self.words, self.tail())
        return self.text()

    def check_nothing_left(self, seconds=20.0):
        """No process of this run, and none of the sockets on which it listened."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            left = {pid: program_of(pid) for pid in self.processes()}
            listening = self.sockets.keys() & listening_sockets().keys()
            if not left and not listening:
                return
            time.sleep(0.02)
        check(not left, "processes are left:", left, self.tail())
        check(not listening, "ports are still listened on:", [self.sockets[socket] for socket in listening])

    def kill(self):
        for pid in self.processes():
            send(pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


def tessera(*words, folder, env=None, prefix=(), **popen):
    """`prefix`: the words of a program that starts it."""
    return Run([*prefix, PROGRAM, *words], folder, env, **popen)


def train(folder, *words, recipe=None, run="run", env=None, **popen):
    """`tessera train` with the tiny model, into folder/run."""
    recipe = recipe or tiny_recipe(folder)
    return tessera("train", recipe, "--set", f"run.dir={folder}/{run}", *words, folder=folder, env=env, **popen)


def settings(**values):
    """settings(train__steps=3) -> ["--set", "train.steps=3"]"""
    return [word for name, value in values.items() for word in ("--set", f"{name.replace('__', '.')}={value}")]


def no_core_dump():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def send(pid, number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def environment_of(pid):
    try:
        entries = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(entry.decode(errors="replace").split("=", 1) for entry in entries if b"=" in entry)


def is_zombie(pid):
    """Or gone altogether."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True


def program_of(pid):
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def free_port():
    """A TCP port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def listening_sockets():
    """inode -> port of every TCP socket of this host that listens."""
    return tcp_sockets(LISTENING)


def tcp_sockets(state):
    """inode -> local port of every TCP socket of this host in that state."""
    found = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in pathlib.Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == state:
                    found[fields[9]] = int(fields[1].rsplit(":", 1)[1], 16)
    return found


def sockets_of(pid):
    """Inodes of the sockets a process holds."""
    found = set()
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                link = os.readlink(f"/proc/{pid}/fd/{descriptor}")
                if link.startswith("socket:["):
                    found.add(link[8:-1])
    return found


def checkpoints(run_dir):
    """The finished checkpoints of a run, oldest first."""
    return sorted(pathlib.Path(run_dir).glob("checkpoints/step_*[0-9]"))


def verify(run_dir, folder):
    """Every checkpoint of the run is sound; how many there are."""
    for checkpoint in checkpoints(run_dir):
        tessera("checkpoint", "verify", checkpoint, folder=folder).done()
    return len(checkpoints(run_dir))


def rows(run_dir, kind="step"):
    lines = (pathlib.Path(run_dir) / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


def losses(run_dir):
    """[(step, loss)], the loss with all its digits."""
    return [(row["step"], row["loss"]) for row in rows(run_dir)]


def check_same_losses(found, expected, tolerance=0.0):
    check([step for step, _ in found] == [step for step, _ in expected], "other steps:", found)
    for (step, loss), (_, wanted) in zip(found, expected):
        check(abs(loss - wanted) <= tolerance * abs(wanted), f"loss of step {step}: {loss}, expected {wanted}")


def summary(run_dir):
    return json.loads((pathlib.Path(run_dir) / "summary.json").read_text())


def main(*tests):
    """Runs the tests, those named on the command line only if any are; exit 0, 1, or 77 if all were skipped.

    `./dev test` repeats the lines that say `skipped:` at its end.
    """
    check(os.access(PROGRAM, os.X_OK), "TESSERA_BIN: no program", PROGRAM)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a time limit: leave nothing behind either
    wanted = sys.argv[1:]
    failed = skipped = ran = 0
    for test in tests:
        if wanted and test.__name__ not in wanted:
            continue
        start = time.monotonic()
        ran += 1
        try:
            test()
            outcome = "passed"
        except Skip as reason:
            if isinstance(reason, Missing) and os.environ.get("TESSERA_NO_SKIP") == "1":
                failed += 1
                outcome = f"FAILED: {reason} (TESSERA_NO_SKIP=1: what it needs was expected to be here)"
            else:
                skipped += 1
                outcome = f"skipped: {reason}"
        except Exception:  # the next test still runs
            failed += 1
            traceback.print_exc()
            outcome = "FAILED"
        print(f"{test.__name__}: {outcome} ({time.monotonic() - start:.1f} s)", flush=True)
    check(ran > 0, "no such test:", wanted)
    sys.exit(1 if failed else SKIPPED if skipped == ran else 0)
