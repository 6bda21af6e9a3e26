# SPDX-License-Identifier: Apache-2.0
"""The steps of a GPU kit, in order of importance; run.sh starts it. Needs Python 3.9 and nothing beside it."""
import argparse
import csv
import ctypes
import datetime
import importlib.util
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

KIT = pathlib.Path(__file__).resolve().parents[1]
TIMM = {"Ti/16": "vit_tiny_patch16_224", "S/16": "vit_small_patch16_224", "B/16": "vit_base_patch16_224",
        "L/16": "vit_large_patch16_224", "H/14": "vit_huge_patch14_224"}
# Lines of the program that say that a GPU path was given up.
WARNINGS = re.compile(r"\[(train\.device|ops\.fp8_linear|train\.pass)\]")
# The settings that the steps `graphs` and `switches` compare with the defaults.
GRAPH_SETTINGS = ["run.cuda_graphs=pass", "run.cuda_graphs=step"]
SWITCHES = ["precision.linear=fp8", "run.cuda_fused_gelu=true", "run.keep_activations=never"]
MOST_OUTPUT = 200_000  # bytes of one command in log.txt; the file stays below 16 MiB


class Skipped(Exception):
    """A step cannot run here; its text says why."""


class Failed(Exception):
    """A step found a fault; its text says which."""


class OutOfTime(Failed):
    """The time for all steps is over."""


class Ran:
    def __init__(self, code, text, seconds, timed_out):
        self.code, self.text, self.seconds, self.timed_out = code, text, seconds, timed_out

    def check(self, what):
        if self.timed_out:
            raise Failed(f"{what}: stopped after its {self.seconds:.0f} s")
        if self.code != 0:
            lines = self.text.strip().splitlines()
            said = [line for line in lines if line.startswith("error:")] or lines[-3:]
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
    """What the steps share: where things are, how a command is run, what was found."""

    def __init__(self, options, scratch):
        self.out, self.scratch, self.rehearse = options.out, scratch, options.rehearse
        self.deadline = time.monotonic() + 60 * options.minutes
        self.about = options.about
        self.log = open(self.out / "log.txt", "w", encoding="utf-8")
        self.facts, self.steps, self.speeds, self.peers, self.kernels, self.peaks, self.faults = {}, [], [], [], None, {}, []
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
        if self.rehearse:
            model, batch, rounds, sets = "mu", 4, 2, [*sets, "run.threads=1"]
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
        """(images/s, GiB) of PyTorch's step."""
        if self.rehearse:
            model, batch = "Ti/16", 2
        ran = self.run([sys.executable, KIT / "peers/vit_step.py", TIMM[model], batch, mode, precision, 2 if self.rehearse else 10],
                       limit).check(f"timm {model} {mode} {precision}")
        found = re.search(r"median ([\d.]+) img/s.*peak ([\d.]+) GiB", ran.text)
        if not found:
            raise Failed(f"timm {model} {mode} {precision}: no figure in its output")
        return float(found[1]), float(found[2])


def device_gib(found):
    return found.get("device_peak_bytes", found["peak_rss_bytes"]) / 2**30


# The steps. Each returns one line for the summary.

def facts(kit):
    """Card, driver, libraries; that the process would hold one cuBLASLt and one CUDA runtime."""
    if not kit.torch:
        raise Failed(f"{sys.executable} has no torch: install torch=={kit.about['torch']}, or set TESSERA_PYTHON or TESSERA_TORCH_DIR")
    if kit.gpu:
        card = kit.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader"], 10)
        kit.facts["card"] = card.check("nvidia-smi").text.strip()
    else:
        kit.facts["card"] = f"rehearsal on a CPU: {platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    kit.facts["python"], kit.facts["torch"] = f"{platform.python_version()} ({sys.executable})", str(kit.torch)
    version = kit.tessera(["--version", "--verbose"], 30).check("tessera --version --verbose").text
    kit.facts["tessera"] = version.splitlines()[0]
    if str(kit.torch.resolve()) not in version:
        raise Failed(f"the program loads another LibTorch than {kit.torch}")
    kit.run(["ldd", KIT / "lib/libtessera_cuda.so"], 10)
    tag = kit.run(["readelf", "-d", KIT / "lib/libtessera_cuda.so"], 10)
    if tag.code == 0 and re.search(r"R(UN)?PATH.*\[(?!\$ORIGIN[\]:])", tag.text):
        raise Failed("the plug-in has a path of another machine")
    if kit.gpu:
        ran = kit.test("CudaLoader.*", 150).check("the loader's test")  # the first look at gigabytes of libraries
        check_tests(kit, ran)
    return kit.facts["card"]


PEAKS = """
import json, sys, time, torch
device, scale = (\"cuda\", 1) if torch.cuda.is_available() else (\"cpu\", 16)
wait = torch.cuda.synchronize if device == \"cuda\" else (lambda: None)
def best(work, times):
    found = 1e9
    for _ in range(times):
        wait(); start = time.perf_counter(); work(); wait(); found = min(found, time.perf_counter() - start)
    return found
n = 8192 // scale
a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
many = 8
matrix = many * 2 * n**3 / best(lambda: [a @ b for _ in range(many)], 6)
x = torch.randn((1 << 30) // scale // 4, device=device); y = torch.empty_like(x)
copy = 2 * many * x.numel() * 4 / best(lambda: [y.copy_(x) for _ in range(many)], 6)
print(json.dumps({\"matrix_tflops\": matrix / 1e12, \"copy_gb_per_s\": copy / 1e9}))
"""


def peaks(kit):
    """What the card does at best: a bf16 matrix product of random values, a copy."""
    ran = kit.run([sys.executable, "-c", PEAKS], 60)
    if not kit.gpu and "ModuleNotFoundError" in ran.text:
        raise Skipped("this Python cannot import torch (the program needs its libraries alone)")
    text = ran.check("peak rates").text
    kit.peaks = json.loads(text.strip().splitlines()[-1])
    return f"{kit.peaks['matrix_tflops']:.1f} TFLOP/s in bf16, copies {kit.peaks['copy_gb_per_s']:.0f} GB/s read and written"


def check_tests(kit, ran, allowed_skips=("needs 2 GPU",)):
    """A test that failed, or that was skipped where a GPU is, is a fault."""
    failed = sorted(set(re.findall(r"^\[  FAILED  \] (\w+\.\w+)", ran.text, re.M)))
    passed = len(re.findall(r"^\[       OK \]", ran.text, re.M))
    skipped = re.findall(r": Skipped\n(.*)", ran.text)
    if failed or ran.timed_out or ran.code != 0:
        raise Failed(f"{len(failed)} tests failed ({', '.join(failed) or 'exit code ' + str(ran.code)}), {passed} passed"
                     + (", stopped at its time limit" if ran.timed_out else ""))
    if passed + len(skipped) == 0:
        raise Failed("no test of this name")
    wrong = [why for why in skipped if not any(allowed in why for allowed in allowed_skips)]
    if kit.gpu and wrong:
        raise Failed(f"{len(wrong)} tests skipped themselves: {wrong[0]}")
    return f"{passed} passed, {len(skipped)} skipped"


def comparisons(kit):
    """The plug-in's kernels and products beside LibTorch's, each launch waited for."""
    return check_tests(kit, kit.test("CudaProducts.AreLibTorchs:CudaKernels.AreLibTorchs", 60, {"CUDA_LAUNCH_BLOCKING": "1"}))


def first_number(kit):
    """B/16 at batch 256 in bf16; again without cuDNN's attention; then timm, eager."""
    ours = kit.bench("B/16", 256, 60)
    kit.facts["B/16"] = ours
    flash = kit.bench("B/16", 256, 45, env={"TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"}, rounds=5)
    line = f"{ours['images_per_second']:.0f} images/s, {flash['images_per_second']:.0f} without cuDNN's attention"
    if missing_timm():
        return line + "; no timm here"
    rate, gib = kit.peer("B/16", 256, "eager", "amp", 60)
    again = kit.bench("B/16", 256, 30, record=False)
    rates = [statistics.mean(found["images_per_second"] for found in (ours, again)), rate]
    kit.peers.append({"model": "B/16", "batch": 256, "mode": "eager", "rounds": "A B A", "rates": rates, "gib": [device_gib(ours), gib]})
    return line + f"; timm eager {rate:.0f} (ratio {rates[0] / rate:.2f})"


def missing_timm():
    return importlib.util.find_spec("timm") is None


# A spoiled capture may leave the process's GPU unusable: it has a process of its own, the last.
LAST_TEST = "CudaTraining.AFailedRecordingLeavesNothingBehind"


def suites_of(kit):
    """What --gtest_filter is given for each suite, in the program's order."""
    listed = kit.run([KIT / "tests/test_cuda", "--gtest_list_tests"], 30, {"LD_LIBRARY_PATH": str(kit.torch / "lib")}).check("the list of tests")
    names = re.findall(r"^(\w+)\.$", listed.text, re.M)
    if len(names) < 5:
        raise Failed(f"only {len(names)} suites of tests")
    return [f"{name}.*-{LAST_TEST}" for name in names if name != "CudaLoader"] + [LAST_TEST]


def gpu_tests(kit):
    """Every op, its gradients, trainings, checkpoints, graphs, fp8 and NCCL against the CPU; a process for each suite."""
    lines, faults = [], []
    for suite in suites_of(kit):
        try:
            lines.append(f"{suite.split('.')[0]} {check_tests(kit, kit.test(suite, 300 if kit.rehearse else 90))}")
        except Failed as fault:
            faults.append(f"{suite.split('-')[0]}: {fault}")
    if faults:
        raise Failed("; ".join(faults) + (f" ({'; '.join(lines)})" if lines else ""))
    return "; ".join(lines)


def graphs(kit):
    """CUDA graphs beside eager execution: Ti/16 at 64 and B/16 at 256."""
    parts = []
    for model, batch in (("Ti/16", 64), ("B/16", 256)):
        plain = kit.facts.get(model) or kit.bench(model, batch, 45)
        rates = [f"{plain['images_per_second']:.0f}"]
        for setting in GRAPH_SETTINGS:
            found = kit.bench(model, batch, 45, [setting])
            rates.append(f"{found['images_per_second']:.0f} ({setting})")
            if kit.gpu and not found.get("replayed_passes"):
                kit.faults.append(f"{model}: no pass was replayed with {setting}")
        parts.append(f"{model} {', '.join(rates)} images/s")
    return "; ".join(parts)


def switches(kit):
    """fp8 linear layers, and what is off by default until a GPU has confirmed it."""
    plain = (kit.facts.get("B/16") or kit.bench("B/16", 256, 45))["images_per_second"]
    parts = [f"defaults {plain:.0f}"]
    for setting in SWITCHES:
        try:
            parts.append(f"{setting} {kit.bench('B/16', 256, 45, [setting])['images_per_second']:.0f}")
        except OutOfTime:
            raise
        except Failed as why:
            kit.faults.append(f"{setting}: {why}")
    return "; ".join(parts) + " images/s"


def beside(kit, mode, models, rounds, limit):
    """Tessera and timm in turn; medians."""
    if missing_timm():
        raise Skipped("this Python has no timm")
    lines = []
    for model, batch in models:
        ours, theirs = [], []
        for _ in range(1 if kit.rehearse else rounds):
            found = kit.bench(model, batch, limit, record=False)
            ours.append((found["images_per_second"], device_gib(found)))
            theirs.append(kit.peer(model, batch, mode, "amp", limit))
        rates = [statistics.median(rate for rate, _ in runs) for runs in (ours, theirs)]
        memory = [max(gib for _, gib in runs) for runs in (ours, theirs)]
        kit.peers.append({"model": model, "batch": batch, "mode": mode, "rounds": len(ours), "rates": rates, "gib": memory})
        lines.append(f"{model} {rates[0]:.0f} beside {rates[1]:.0f} images/s, ratio {rates[0] / rates[1]:.2f}")
    return "; ".join(lines)


def compiled_peer(kit):
    """Tessera and timm with torch.compile in turn: B/16, then S/16."""
    return beside(kit, "compile", [("B/16", 256), ("S/16", 256)], 2, 90)


def tuned_peer(kit):
    """Tessera and timm with torch.compile(mode="max-autotune") in turn: B/16."""
    return beside(kit, "max-autotune", [("B/16", 256)], 1, 180)


# Class of a kernel by its name, the first that matches.
CLASSES = [("norm forward", r"norm_forward_kernel|layer_norm(?!.*backward)"),
           ("norm backward", r"norm_backward_kernel|add_parts_kernel|layer_norm.*backward"),
           ("optimizer", r"adamw|tessera::optimizer"),
           ("cross entropy", r"cross_entropy|log_softmax|nll_loss"),
           ("images", r"pictures_kernel"),
           ("fp8 rounding", r"fp8_rows"),
           ("attention", r"attention|sdpa|flash|fmha|cudnn"),
           ("GELU backward", r"gelu.*backward|GeluBackward"),
           ("GELU forward", r"(?i)gelu"),
           ("matrix products", r"gemm|nvjet|cutlass|xmma|splitK|cublas|aten::(add)?mm|aten::bmm|tessera::linear"),
           ("convolution", r"conv|implicit"),
           ("copies", r"Memcpy|Memset|copy_|CatArray|fill")]


def class_of(name):
    return next((kind for kind, pattern in CLASSES if re.search(pattern, name)), "other")


def work_of_classes(step, batch):
    """What a step of B/16 must do at least: {class: (TFLOP, GB)}. Tensors are bf16; docs/performance.md says what each reads."""
    tokens, width, mlp, depth, parameters = 197, 768, 3072, 12, 86.6e6
    rows = batch * tokens
    row_bytes = 2.0 * rows / 1e9
    norms = 2 * depth + 1
    attention = 3.5 * 4 * batch * tokens**2 * width * depth / 1e12  # backward computes the scores again
    whole = step["tflops"] * step["step_seconds"]
    return {"matrix products": (whole - attention / 3.5 * 3, 0), "attention": (attention, 0),
            "norm forward": (0, norms * 4 * width * row_bytes), "norm backward": (0, norms * 4 * width * row_bytes),
            "GELU forward": (0, depth * 2 * mlp * row_bytes), "GELU backward": (0, depth * 3 * mlp * row_bytes),
            "optimizer": (0, 30 * parameters / 1e9)}


def kernel_table(kit):
    """Each kernel of a B/16 step by LibTorch's profiler, and how far the classes are from the card's peak rates."""
    output = kit.scratch / "kernels.json"
    kit.bench("B/16", 256, 60, rounds=3, more=["--kernels", output], record=False)
    found = json.loads(output.read_text())
    total = sum(kernel["seconds"] for kernel in found["kernels"])
    if total <= 0:
        raise Failed("the profiler gave no times")
    classes = {}
    for kernel in found["kernels"]:
        kernel["class"] = class_of(kernel["name"])
        classes[kernel["class"]] = classes.get(kernel["class"], 0) + kernel["seconds"]
    batch = found["step"]["batch_per_rank"]
    work = {} if kit.rehearse else work_of_classes(found["step"], batch)
    rates = kit.peaks
    found["classes"] = []
    for name, seconds in sorted(classes.items(), key=lambda item: -item[1]):
        tflop, gb = work.get(name, (None, None))
        least = None
        if tflop is not None and rates:
            least = max(tflop / rates["matrix_tflops"], gb / rates["copy_gb_per_s"])
        found["classes"].append({"class": name, "seconds": seconds, "tflop": tflop, "gb": gb, "least_seconds": least})
    found["idle_seconds"] = max(0.0, found["step"]["step_seconds"] - total)
    kit.kernels = found
    with open(kit.out / "kernels.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["kernel", "class", "calls a step", "ms a step", "% of all kernels"])
        for kernel in found["kernels"]:
            writer.writerow([kernel["name"], kernel["class"], f"{kernel['calls']:g}", f"{1e3 * kernel['seconds']:.4f}",
                             f"{100 * kernel['seconds'] / total:.2f}"])
    longest = found["classes"][0]
    return (f"{len(found['kernels'])} kernels, {1e3 * total:.1f} ms in a step of {1e3 * found['step']['step_seconds']:.1f} ms; "
            f"{longest['class']} {100 * longest['seconds'] / total:.0f} %")


def sanitizer(kit):
    """compute-sanitizer: memcheck, racecheck, synccheck, initcheck of kernels and of a Ti/16 step with 197 tokens."""
    program = shutil.which("compute-sanitizer")
    if not program or not kit.gpu:
        raise Skipped("no compute-sanitizer" if not program else "a rehearsal has no GPU")
    # Every product's algorithm would be run and measured under the tool.
    environment = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "TESSERA_CUBLAS_TUNING": "0"}
    under = [program, "--error-exitcode", "9", "--report-api-errors", "no", "--tool"]
    step = [KIT / "bin/tessera", "bench", "step", "--model", "Ti/16", "--batch", "2", "--rounds", "1", "--quiet"]
    kernels = "CudaKernels.AreLibTorchs"  # every kernel, small
    clean, unfinished = [], []
    for name, run in (("memcheck of a step", lambda: kit.run([*under, "memcheck", *step], 45, environment)),
                      ("memcheck of kernels", lambda: kit.test(kernels, 40, environment, [*under, "memcheck"])),
                      ("racecheck", lambda: kit.test(kernels, 40, environment, [*under, "racecheck"])),
                      ("synccheck", lambda: kit.test(kernels, 40, environment, [*under, "synccheck"])),
                      ("initcheck of a step", lambda: kit.run([*under, "initcheck", *step], 45, environment))):
        ran = run()
        finding = sanitizer_finding(ran)
        if finding == "unsupported":
            raise Skipped("compute-sanitizer: this machine does not support it")
        (clean if finding == "clean" else unfinished if finding == "unfinished" else kit.faults).append(
            name if finding in ("clean", "unfinished") else f"{name}: {finding}")
    return f"clean: {', '.join(clean) or 'none'}" + (f"; not finished in time: {', '.join(unfinished)}" if unfinished else "")


def sanitizer_finding(ran):
    """"clean", "unfinished", "unsupported", or what was found."""
    found = re.findall(r"=+ +((?:Invalid|Race|Barrier|Uninitialized|Host API memory|ERROR:|Error:).*)", ran.text)
    if found:
        return "; ".join(found[:2])
    if "ot supported" in ran.text:
        return "unsupported"
    if ran.timed_out:
        return "unfinished"
    return "clean" if ran.code == 0 else f"exit code {ran.code}: {' / '.join(ran.text.strip().splitlines()[-2:])[:300]}"


NCU_METRICS = ["gpu__time_duration.sum", "sm__throughput.avg.pct_of_peak_sustained_elapsed",
               "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"]


def counters(kit):
    """Hardware counters (ncu) of the launches of a B/16 step at batch 64: each kernel's share of the card's peak rates."""
    program = shutil.which("ncu")
    if not program or not kit.gpu:
        raise Skipped("no ncu" if not program else "a rehearsal has no GPU")
    launches = int(sum(kernel["calls"] for kernel in kit.kernels["kernels"])) if kit.kernels else 750
    # The clocks stay as they are. The program ends with the last launch that is wanted, and the table is printed then.
    ran = kit.run([program, "--csv", "--page", "raw", "--print-units", "base", "--print-kernel-base", "mangled", "--clock-control", "none",
                   "--kill", "yes", "--metrics", ",".join(NCU_METRICS), "--launch-skip", 2 * launches + 400, "--launch-count", launches,
                   KIT / "bin/tessera", "bench", "step", "--model", "B/16", "--batch", "64", "--rounds", "3", "--quiet"], 90,
                  {"TESSERA_CUBLAS_TUNING": "0"})
    lines = [line for line in ran.text.splitlines() if line.startswith('"')]
    (kit.out / "ncu.csv").write_text("\n".join(lines)[:15_000_000])
    kit.facts["ncu"] = shares_of_kernels(lines)
    if not kit.facts["ncu"]:
        raise Skipped(f"ncu gave no counters: {' / '.join(ran.text.strip().splitlines()[-2:])[:300]}")
    return f"{len(kit.facts['ncu'])} kernels"


def shares_of_kernels(lines):
    """{name as the profiler gives it: [% of the peak of compute, of memory]} of ncu's raw table, weighted by time."""
    sums = {}
    for row in csv.DictReader(lines):
        try:
            seconds, compute, memory = [float(row[metric].replace(",", "")) for metric in NCU_METRICS]
        except (KeyError, ValueError, AttributeError):
            continue  # the row of units
        entry = sums.setdefault(demangled(row["Kernel Name"]), [0, 0, 0])
        for i, value in enumerate((seconds, seconds * compute, seconds * memory)):
            entry[i] += value
    return {name: [compute / seconds, memory / seconds] for name, (seconds, compute, memory) in sums.items() if seconds}


def demangled(name):
    try:
        demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):
        return name
    demangle.restype = ctypes.c_char_p  # (what it allocates is not freed: some kilobytes)
    status = ctypes.c_int()
    found = demangle(name.encode(), None, None, ctypes.byref(status))
    return found.decode() if status.value == 0 and found else name


def other_sizes(kit):
    """S/16, L/16 and H/14, in bf16 and in fp8."""
    parts = []
    for model, batch in (("S/16", 256), ("L/16", 128), ("H/14", 64)):
        plain = kit.bench(model, batch, 60, rounds=5)
        fp8 = kit.bench(model, batch, 60, ["precision.linear=fp8"], rounds=5)
        parts.append(f"{model} {plain['images_per_second']:.0f}, fp8 {fp8['images_per_second']:.0f}")
    return "; ".join(parts) + " images/s"


JPEG_RECIPE = """
name = "jpeg"
[model]
preset = "{model}"
[data]
source = "folder:{folder}"
val = "train[:8]"
[train]
batch_per_rank = {batch}
steps = {steps}
log_every = 1
eval_every_epochs = 0
clip = 1.0
[optimizer]
weight_decay = 0.1
[checkpoint]
every_epochs = 0
"""


def jpegs(kit):
    """From JPEG files to steps of B/16, with all cores of the machine."""
    folder = kit.scratch / "jpegs"
    made = kit.run([sys.executable, KIT / "tools/make_images.py", "none", folder, 40 if kit.rehearse else 2000], 60)
    if made.code != 0:
        if kit.gpu:
            made.check("JPEG files (they take numpy and Pillow)")
        for i in range(40):  # enough to rehearse with
            place = folder / "train" / f"class{i % 2}"
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(KIT / "tools/small.jpg", place / f"{i}.jpg")
    model, batch, steps = ("mu", 4, 4) if kit.rehearse else ("B/16", 256, 40)
    recipe = kit.scratch / "jpeg.toml"
    recipe.write_text(JPEG_RECIPE.format(model=model, folder=folder, batch=batch, steps=steps))
    run = kit.scratch / "jpeg-run"
    ran = kit.tessera(["train", recipe, "--set", f"run.dir={run}"], 90).check("training from JPEG files")
    if ran.warnings():
        raise Failed(ran.warnings()[0])
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "images_per_second" in row and row["step"] > steps // 4]
    rate = statistics.median(row["images_per_second"] for row in rows)
    wait = statistics.median(row["data_wait"] for row in rows)
    files = "one small file 40 times, for want of numpy and Pillow" if made.code != 0 else made.text.strip().splitlines()[-1].split(", in ")[0]
    return f"{rate:.0f} images/s, {100 * wait:.0f} % of the time waiting for data, {os.cpu_count()} cores ({files})"


def two_ranks(kit):
    """Two ranks on one GPU (run.share_gpu): the loss curve of one rank, then the rate."""
    losses = {}
    for procs in (1, 2):
        run = kit.scratch / f"ranks-{procs}"
        kit.tessera(["train", KIT / "recipes/quickstart.toml", "--fake-data", "--procs", procs, "--set", f"run.dir={run}",
                     "--set", "train.steps=6", "--set", "run.share_gpu=true", "--set", "precision.compute=fp32",
                     "--set", "train.log_every=1", "--set", "train.eval_every_epochs=0"], 60).check(f"a training on {procs} ranks")
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        losses[procs] = [row["loss"] for row in rows if "loss" in row and "images_per_second" in row]
    apart = max(abs(a - b) / b for a, b in zip(losses[2], losses[1]))
    if len(losses[1]) != 6 or len(losses[2]) != 6 or not apart < 1e-3:
        raise Failed(f"losses of one rank {losses[1]}, of two {losses[2]}")
    found = kit.bench("Ti/16", 64, 45, ["run.share_gpu=true"], more=["--procs", "2"], note="2 ranks on one GPU")
    return f"losses within {apart:.1e} of one rank's; Ti/16 {found['images_per_second']:.0f} images/s"


# name, step, seconds that must be left for it to begin
STEPS = [("facts", facts, 5), ("comparisons", comparisons, 10), ("number", first_number, 30), ("peaks", peaks, 10),
         ("tests", gpu_tests, 30), ("graphs", graphs, 20), ("switches", switches, 20), ("kernels", kernel_table, 15),
         ("sanitizer", sanitizer, 60), ("counters", counters, 40), ("compiled", compiled_peer, 60), ("sizes", other_sizes, 20),
         ("jpegs", jpegs, 20), ("ranks", two_ranks, 20), ("tuned", tuned_peer, 90)]


def speed_rows(kit):
    yield ("| model, batch | dtype | setting | images/s | ms a step | TFLOP/s | % of the GEMM rate | GiB | replays |")
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for found in kit.speeds:
        yield (f"| {found['model']}, {found['batch_per_rank']} | {found['dtype']} | {found['setting'] or 'defaults'} "
               f"| {found['images_per_second']:.1f} | {1e3 * found['step_seconds']:.2f} | {found['tflops']:.2f} "
               f"| {100 * found['share_of_gemm_rate']:.0f} % of {found['gemm_tflops']:.1f} | {device_gib(found):.2f} "
               f"| {found.get('replayed_passes', '-')} |")


def peer_rows(kit):
    yield "| model, batch | peer | rounds in turn | Tessera, images/s | peer, images/s | ratio | Tessera, GiB | peer, GiB |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for found in kit.peers:
        yield (f"| {found['model']}, {found['batch']} | timm, {found['mode']}, autocast | {found['rounds']} | {found['rates'][0]:.1f} "
               f"| {found['rates'][1]:.1f} | {found['rates'][0] / found['rates'][1]:.2f} | {found['gib'][0]:.2f} | {found['gib'][1]:.2f} |")


def kernel_rows(kit):
    found, ncu = kit.kernels, kit.facts.get("ncu", {})
    total = sum(kernel["seconds"] for kernel in found["kernels"])
    yield "| class of kernels | ms | share | least work | ms at the peak rates | share of the roofline |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for entry in found["classes"]:
        work = "-" if entry["tflop"] is None else f"{entry['tflop']:.2f} TFLOP" if entry["tflop"] else f"{entry['gb']:.2f} GB"
        least = entry["least_seconds"]
        yield (f"| {entry['class']} | {1e3 * entry['seconds']:.2f} | {100 * entry['seconds'] / total:.1f} % | {work} "
               f"| {number(least and 1e3 * least, 2)} | {number(least and 100 * least / entry['seconds'], 0)}{' %' if least else ''} |")
    yield f"| no kernel runs | {1e3 * found['idle_seconds']:.2f} | | | | |"
    yield ""
    yield "The 25 kernels that take longest; compute and memory are shares of the card's peak by its counters (ncu), where there are some."
    yield ""
    yield "| kernel | class | calls | ms | share | compute | memory |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for kernel in found["kernels"][:25]:
        counted = ncu.get(kernel["name"])
        compute, memory = ("-", "-") if counted is None else (f"{counted[0]:.0f} %", f"{counted[1]:.0f} %")
        name = kernel["name"].replace("|", "\\|").replace("void at::native::", "").replace("(anonymous namespace)::", "")
        yield (f"| `{name[:160]}` | {kernel['class']} | {kernel['calls']:g} | {1e3 * kernel['seconds']:.3f} "
               f"| {100 * kernel['seconds'] / total:.1f} % | {compute} | {memory} |")


def write_whole(path, text):
    """The whole text, or the file stays as it was (a full disk)."""
    other = path.with_name(path.name + ".new")
    try:
        other.write_text(text, encoding="utf-8")
        other.replace(path)
    finally:
        other.unlink(missing_ok=True)


def write_results(kit):
    lines = ["# On a GPU" if kit.gpu else "# Rehearsal of the GPU kit on a CPU", ""]
    lines += [f"{kit.facts.get('card', 'unknown card')}; {kit.facts.get('tessera', kit.about['version'])}; torch {kit.about['torch']} in "
              f"{kit.facts.get('torch', '-')}; Python {kit.facts.get('python', '-')}; "
              f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC. `LD_LIBRARY_PATH` {kit.facts.get('LD_LIBRARY_PATH', '')}.", ""]
    if kit.peaks:
        lines += [f"Peak rates: {kit.peaks['matrix_tflops']:.1f} TFLOP/s (8192 x 8192 x 8192 in bf16, random values), copies "
                  f"{kit.peaks['copy_gb_per_s']:.0f} GB/s." if kit.gpu else
                  f"Peak rates: {kit.peaks['matrix_tflops']:.2f} TFLOP/s, copies {kit.peaks['copy_gb_per_s']:.1f} GB/s.", ""]
    lines += ["## Steps", "", "| step | what | result | seconds | found |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| {name} | {what} | {result} | {seconds:.0f} | {text.replace('|', '/')} |" for name, what, result, seconds, text in kit.steps]
    if kit.speeds:
        lines += ["", "## Training steps", "", "`tessera bench step`: medians of the rounds.", "", *speed_rows(kit)]
    if kit.peers:
        lines += ["", "## Beside PyTorch", "", "`peers/vit_step.py` in turn with `tessera bench step`; medians.", "", *peer_rows(kit)]
    if kit.kernels:
        lines += ["", "## Kernels of a B/16 step", "", *kernel_rows(kit)]
    write_whole(kit.out / "results.md", "\n".join(lines) + "\n")
    write_whole(kit.out / "results.json", json.dumps({"about": kit.about, "facts": kit.facts, "peaks": kit.peaks, "steps": kit.steps,
                                                      "speeds": kit.speeds, "peers": kit.peers, "kernels": kit.kernels}, indent=1))
    write_whole(kit.out / "next.md", next_text(kit))


def next_text(kit):
    """The three largest losses of a B/16 step: time above what the card's peak rates would take."""
    lines = ["# What to mend next", ""]
    failed = [f"- {name}: {text}" for name, _, result, _, text in kit.steps if result in ("failed", "error")]
    if failed:
        lines += ["Steps that failed, before any speed:", "", *failed, ""]
    if not kit.kernels:
        return "\n".join(lines + ["No kernel table yet: the losses of a step are unknown."]) + "\n"
    found = kit.kernels
    losses = [(found["idle_seconds"], "no kernel runs", "the host queues work too slowly, or waits: see CUDA graphs and the end of the step")]
    for entry in found["classes"]:
        least = entry["least_seconds"] or 0
        known = entry["least_seconds"] is not None
        losses.append((entry["seconds"] - least, entry["class"],
                       f"{1e3 * entry['seconds']:.2f} ms, at the peak rates {1e3 * least:.2f} ms" if known else
                       f"{1e3 * entry['seconds']:.2f} ms, no roofline estimate"))
    losses.sort(reverse=True)
    lines += ["The three largest losses of a step (time above what the peak rates would take):", ""]
    lines += [f"{i}. **{name}**: {1e3 * seconds:.2f} ms lost of {1e3 * found['step']['step_seconds']:.2f} ms ({why})"
              for i, (seconds, name, why) in enumerate(losses[:3], 1)]
    return "\n".join(lines) + "\n"


def run_step(kit, name, step, needed):
    """(result, text)"""
    if kit.left() < (0 if kit.rehearse else needed):
        return "skipped", f"{max(0.0, kit.left()):.0f} s were left, it needs {needed}"
    if not kit.torch and step is not facts:
        return "skipped", "no torch"
    kit.faults = []
    try:
        text = step(kit)
        return ("failed", f"{'; '.join(kit.faults)} ({text})") if kit.faults else ("passed", text)
    except OutOfTime as why:
        return "failed" if kit.faults else "skipped", "; ".join([*kit.faults, str(why)])
    except Skipped as why:
        return "failed" if kit.faults else "skipped", "; ".join([*kit.faults, str(why)])
    except Failed as why:
        return "failed", "; ".join([*kit.faults, str(why)])
    except Exception as error:  # a slip of this script must not end the other steps
        return "error", f"{type(error).__name__}: {error}"


def parsed():
    parser = argparse.ArgumentParser(prog="run.sh", description="Run the steps of this GPU kit, the most important first.")
    parser.add_argument("out", nargs="?", type=pathlib.Path, metavar="OUT", help="folder for the results (at most 8 files)")
    parser.add_argument("--minutes", type=float, help="time for all steps (default 8); a rehearsal takes what it needs")
    parser.add_argument("--rehearse", action="store_true", help="run the same steps in small on a CPU")
    parser.add_argument("--only", default="", metavar="STEP,...", help="run only these steps")
    parser.add_argument("--skip", default="", metavar="STEP,...", help="leave these steps out")
    parser.add_argument("--list", action="store_true", help="print the steps in their order and end")
    options = parser.parse_args()
    names = [name for name, _, _ in STEPS]
    options.only, options.skip = [list(filter(None, words.split(","))) for words in (options.only, options.skip)]
    for word in options.only + options.skip:
        if word not in names:
            parser.error(f"no step is called '{word}'; the steps are {', '.join(names)}")
    if options.list:
        for name, step, _ in STEPS:
            print(f"{name:12} {step.__doc__}")
        sys.exit(0)
    if options.out is None:
        parser.error("OUT is missing: the folder for the results")
    if str(options.out) == ".":
        parser.error("OUT is the current folder or empty: name a new folder")
    if options.rehearse and options.minutes is not None:
        parser.error("--minutes limits no rehearsal: drop it, or --rehearse")
    if options.minutes is None:
        options.minutes = 60 if options.rehearse else 8
    if not options.minutes > 0:
        parser.error(f"--minutes is {options.minutes}: expected more than 0")
    options.wanted = [row for row in STEPS if (not options.only or row[0] in options.only) and row[0] not in options.skip]
    if not options.wanted:
        parser.error("--only and --skip leave no step")
    try:
        options.about = json.loads((KIT / "kit.json").read_text())
        options.about["torch"], options.about["version"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        parser.error(f"{KIT / 'kit.json'} is not a kit's ({type(error).__name__}: {error}): copy the whole kit again")
    options.out = options.out.absolute()
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        if any(options.out.iterdir()):
            parser.error(f"OUT is {options.out}, which is not empty: name a new folder, so that no earlier results are lost")
        (options.out / "log.txt").touch()
    except OSError as error:
        parser.error(f"OUT is {options.out}, which cannot be written: {error.strerror}")
    return options


def stopped(number, _):
    """A signal ends the command that runs (Kit.run) and leaves the results of the steps before."""
    sys.exit(128 + number)


def main():
    options = parsed()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stopped)
    with tempfile.TemporaryDirectory(prefix="tessera-kit-") as scratch:
        kit = Kit(options, pathlib.Path(scratch))
        for name, step, needed in options.wanted:
            kit.say(f"\n==== {name}: {step.__doc__}")
            start = time.monotonic()
            result, text = run_step(kit, name, step, needed)
            kit.steps.append((name, step.__doc__, result, time.monotonic() - start, text))
            print(f"{name:12} {result:8} {kit.steps[-1][3]:6.1f} s  {text}", flush=True)
            kit.say(f"==== {name}: {result}: {text}")
            try:
                write_results(kit)
            except Exception as error:  # as above: the log has everything
                kit.say(f"the results cannot be written: {type(error).__name__}: {error}")
                print(f"results: {type(error).__name__}: {error}", flush=True)
    results = [result for _, _, result, _, _ in kit.steps]
    return 1 if "failed" in results or "error" in results or "passed" not in results else 0


if __name__ == "__main__":
    sys.exit(main())
