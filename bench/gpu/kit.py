# SPDX-License-Identifier: Apache-2.0
"""What the steps of a GPU kit share: where things are, how a command is run, what was measured."""
import ctypes
import importlib.util
import io
import json
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time

KIT = pathlib.Path(__file__).resolve().parents[1]
TIMM = {"Ti/16": "vit_tiny_patch16_224", "S/16": "vit_small_patch16_224", "B/16": "vit_base_patch16_224",
        "L/16": "vit_large_patch16_224", "H/14": "vit_huge_patch14_224"}
# Lines of the program that say that a GPU path was given up.
WARNINGS = re.compile(r"\[(train\.device|ops\.fp8_linear|train\.pass)\]")
# timm has no model as small as "mu".
REHEARSAL_PEER = ("Ti/16", 2)
# Libraries of the torch package, of the CUDA packages that it requires, and of the driver.
TORCH_BRINGS = re.compile(r"lib(torch|c10|cu|nv|nccl|gomp|shm)")
MOST_OUTPUT = 200_000  # bytes of one command in log.txt; the file stays below 16 MiB


class Skipped(Exception):
    """A step cannot run here; its text says why."""


class Failed(Exception):
    """A step found a fault; its text says which."""


class OutOfTime(Failed):
    """The time for all steps is over."""


class CannotStart(Exception):
    """This machine lacks what every step needs; nothing was measured or written."""


class Ran:
    def __init__(self, code, text, seconds, timed_out):
        self.code, self.text, self.seconds, self.timed_out = code, text, seconds, timed_out

    def check(self, what):
        if self.timed_out:
            raise Failed(f"{what}: stopped after its {self.seconds:.0f} s")
        if self.code != 0:
            lines = self.text.strip().splitlines()
            said = [line for line in lines if line.startswith("error:")] or lines[-1 if "Traceback (" in self.text else -3:]
            raise Failed(f"{what}: exit code {self.code}: {' / '.join(said)[:600]}")
        return self

    def warnings(self):
        return [line.strip() for line in self.text.splitlines() if WARNINGS.search(line)]


LIBC = ctypes.CDLL(None)


def end_with_parent():
    LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a killed run.sh leaves no command running


def end_group(process, number):
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass


def number(value, digits=1):
    return "-" if value is None else f"{value:.{digits}f}"


class Kit:
    """What the steps share. Nothing is written into OUT before open_output()."""

    def __init__(self, options, scratch):
        self.out, self.scratch, self.rehearse = options.out, scratch, options.rehearse
        self.deadline = time.monotonic() + 60 * options.minutes
        self.about = options.about
        self.log = io.StringIO()
        self.facts, self.steps, self.speeds, self.peers, self.kernels, self.peaks, self.faults = {}, [], [], [], None, {}, []
        self.layouts, self.predictions, self.pretended = [], [], []
        self.torch = self.find_torch()
        self.env = {**os.environ, "TORCH_CPP_LOG_LEVEL": "WARNING", "XDG_CACHE_HOME": str(scratch / "cache"),
                    "PYTHONUNBUFFERED": "1", "TESSERA_PYTHON": sys.executable}
        # A toolkit's folder there would mix its libraries with those of the torch package.
        kept = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":")
                if folder and (pathlib.Path(folder) / "libcuda.so.1").exists()]
        self.facts["LD_LIBRARY_PATH"] = f"{os.environ.get('LD_LIBRARY_PATH', '')!r}, kept {':'.join(kept)!r}"
        self.env["LD_LIBRARY_PATH"] = ":".join(kept)
        if self.torch:
            self.env["TESSERA_TORCH_DIR"] = str(self.torch)
        self.gpu = not self.rehearse

    def find_torch(self):
        """The folder of the torch package: as TESSERA_TORCH_DIR says, else of the Python that runs this."""
        if os.environ.get("TESSERA_TORCH_DIR"):
            return pathlib.Path(os.environ["TESSERA_TORCH_DIR"]).absolute()
        found = importlib.util.find_spec("torch")
        return pathlib.Path(found.origin).parent if found and found.origin else None

    def check_start(self):
        """Raises CannotStart where no step can run: no torch of the right version, or no GPU."""
        needed = f"torch=={self.about['torch']}"
        if not self.torch:
            raise CannotStart(f"{sys.executable} has no torch: set TESSERA_PYTHON to a Python that has {needed}, "
                              "or TESSERA_TORCH_DIR to the folder of that package")
        if self.gpu:
            card = self.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader"], 20)
            if card.code != 0 or not card.text.strip():
                why = "nvidia-smi not found" if card.code == 127 else f"nvidia-smi: {' / '.join(card.text.strip().splitlines()[:2])[:300]}"
                raise CannotStart(f"no NVIDIA GPU or driver here ({why}); use --rehearse on a CPU")
            self.facts["card"] = card.text.strip()
        else:
            self.facts["card"] = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores (no GPU: a rehearsal)"
        try:
            version = self.tessera(["--version", "--verbose"], 60).check("tessera --version --verbose").text
        except Failed as why:
            raise CannotStart(f"the program does not start with the torch package in {self.torch}: {why}") from None
        if str(self.torch.resolve()) not in version:
            raise CannotStart(f"the program loads a different LibTorch than {self.torch}")
        self.facts["tessera"] = version.splitlines()[0]

    def open_output(self):
        """Makes OUT. The log begins with what was said so far."""
        self.out.mkdir(parents=True, exist_ok=True)
        earlier = self.log.getvalue()
        self.log = open(self.out / "log.txt", "w", encoding="utf-8")
        self.say(earlier)

    def missing_libraries(self):
        """["bin/tessera: libz.so.1", ...]: libraries that ldd does not find and that the torch package does not bring."""
        folders = ":".join(filter(None, [str(self.torch / "lib"), self.env["LD_LIBRARY_PATH"]]))
        missing = []
        for folder in ("bin", "lib", "tests"):
            for path in sorted((KIT / folder).iterdir()):
                text = self.run(["ldd", path], 30, {"LD_LIBRARY_PATH": folders}).text
                names = sorted(set(re.findall(r"^\s*(\S+) => not found", text, re.M)))
                missing += [f"{folder}/{path.name}: {name}" for name in names if not TORCH_BRINGS.match(name)]
        return missing

    def sized(self, model, batch):
        """(model, batch) of a training step: a rehearsal takes a small one."""
        return ("mu", 4) if self.rehearse else (model, batch)

    def left(self):
        return self.deadline - time.monotonic()

    def run(self, words, limit, env=None, cwd=None):
        """Runs a command for at most `limit` seconds; what it says goes to the log as well."""
        words = [str(word) for word in words]
        limit = min(limit, self.left())
        if limit < 5:
            raise OutOfTime("the time for all steps is over")
        extra = env or {}
        self.say(f"\n$ {' '.join([f'{k}={v}' for k, v in extra.items()] + words)}    (at most {limit:.0f} s)")
        start = time.monotonic()
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                           env={**self.env, **extra}, cwd=cwd or self.scratch, start_new_session=True,
                                           preexec_fn=end_with_parent)
            except OSError as error:
                self.say(f"cannot start: {error}")
                return Ran(127, str(error), 0, False)
            timed_out = False
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                timed_out = True
                end_group(process, signal.SIGTERM)  # profilers have something to put back
                try:
                    process.wait(3)
                except subprocess.TimeoutExpired:
                    pass
            finally:
                end_group(process, signal.SIGKILL)  # also what it started and left running
                process.wait()
            output.seek(0)
            text = output.read().decode(errors="replace")
        seconds = time.monotonic() - start
        shown = text if len(text) <= MOST_OUTPUT else text[:MOST_OUTPUT // 2] + "\n[...]\n" + text[-MOST_OUTPUT // 2:]
        self.say(f"{shown.rstrip()}\n-> {'stopped' if timed_out else f'exit code {process.returncode}'} after {seconds:.1f} s")
        return Ran(process.returncode, text, seconds, timed_out)

    def say(self, text):
        try:
            self.log.write(text + "\n")
            self.log.flush()
        except OSError as error:  # a full disk must not end the steps
            print(f"log.txt: {error.strerror}", flush=True)

    def tessera(self, words, limit, env=None, cwd=None):
        return self.run([KIT / "bin/tessera", *words], limit, env, cwd)

    def test(self, pattern, limit, env=None, under=()):
        # The test program is linked with LibTorch; torch's own folder holds nothing of a toolkit.
        libraries = ":".join(filter(None, [str(self.torch / "lib"), self.env["LD_LIBRARY_PATH"]]))
        return self.run([*under, KIT / "tests/test_cuda", f"--gtest_filter={pattern}"], limit,
                        {**({"TESSERA_REHEARSE": "1"} if self.rehearse else {}), **(env or {}), "LD_LIBRARY_PATH": libraries})

    def bench(self, model, batch, limit, sets=(), dtype="bf16", env=None, rounds=10, more=(), note="", record=True):
        """One `tessera bench step`; its JSON. A warning that a GPU path was given up is a fault of the step, which goes on."""
        output = self.scratch / "step.json"
        output.unlink(missing_ok=True)
        model, batch = self.sized(model, batch)
        if self.rehearse:
            rounds, sets = 2, [*sets, "run.threads=1"]
        words = ["bench", "step", "--model", model, "--batch", batch, "--dtype", dtype, "--rounds", rounds, "--quiet",
                 "--output", output, *[word for key in sets for word in ("--set", key)], *more]
        ran = self.tessera(words, limit, env).check(f"bench step {model} batch {batch} {' '.join(sets)}")
        found = json.loads(output.read_text())
        found["warnings"] = ran.warnings()
        found["setting"] = ", ".join(filter(None, [*sets, *[f"{k}={v}" for k, v in (env or {}).items()], note]))
        if record:
            self.speeds.append(found)
        self.faults += found["warnings"]
        if self.gpu and not found["device"].startswith("NVIDIA"):
            raise Failed(f"the step ran on {found['device']}")
        return found

    def peer(self, model, batch, mode, precision, limit):
        """(images/s, GiB) of PyTorch's step; in a rehearsal of REHEARSAL_PEER."""
        if self.rehearse:
            model, batch = REHEARSAL_PEER
            limit *= 3  # torch.compile takes most of its time on a CPU that other programs use
        ran = self.run([sys.executable, KIT / "peers/vit_step.py", TIMM[model], batch, mode, precision, 2 if self.rehearse else 10],
                       limit).check(f"timm {model} {mode} {precision}")
        found = re.search(r"median ([\d.]+) img/s.*peak ([\d.]+) GiB", ran.text)
        if not found:
            raise Failed(f"timm {model} {mode} {precision}: no figure in its output")
        return float(found[1]), float(found[2])


def device_gib(found):
    return found.get("device_peak_bytes", found["peak_rss_bytes"]) / 2**30
