# SPDX-License-Identifier: Apache-2.0
"""The steps of a GPU kit, in order of importance; run.sh starts it. Needs Python 3.9 and nothing beside it."""
import argparse
import csv
import ctypes
import importlib.util
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time

from kit import KIT, CannotStart, Failed, Kit, OutOfTime, REHEARSAL_PEER, Skipped, device_gib
from layouts import layouts
from planning import plan, pretended
from results import write_results

# The settings that the steps `graphs` and `switches` compare with the defaults.
GRAPH_SETTINGS = ["run.cuda_graphs=off", "run.cuda_graphs=pass"]
SWITCHES = ["precision.linear=fp8", "run.keep_activations=never"]


# The steps. Each returns one line for the summary.

def facts(kit):
    """Card and driver; every program and library of the kit finds its libraries, and the process holds one CUDA runtime."""
    kit.facts["python"], kit.facts["torch"] = f"{platform.python_version()} ({sys.executable})", str(kit.torch)
    missing = kit.missing_libraries()
    if missing:
        raise Failed(f"libraries are not found: {'; '.join(missing[:5])}")
    tag = kit.run(["readelf", "-d", KIT / "lib/libtessera_cuda.so"], 10)
    if tag.code == 0 and re.search(r"R(UN)?PATH.*\[(?!\$ORIGIN[\]:])", tag.text):
        raise Failed("lib/libtessera_cuda.so searches libraries in a folder of the machine that built it")
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
    """Peak rates of the card: a bf16 matrix product of random values, a copy."""
    ran = kit.run([sys.executable, "-c", PEAKS], 60)
    if "ModuleNotFoundError" in ran.text:
        raise Skipped("this Python cannot import torch (the program needs only its libraries)")
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
    if passed == 0:
        raise Skipped("needs a GPU" if kit.rehearse else skipped[0])
    return f"{passed} passed" + (f", {len(skipped)} skipped" if skipped else "")


def comparisons(kit):
    """The plug-in's kernels and products against LibTorch's, one launch at a time."""
    return check_tests(kit, kit.test("CudaProducts.AreLibTorchs:CudaKernels.AreLibTorchs", 60, {"CUDA_LAUNCH_BLOCKING": "1"}))


def first_number(kit):
    """A training step in bf16; the same without cuDNN's attention; then timm, eager."""
    ours = kit.bench("B/16", 256, 60)
    kit.facts["B/16"] = ours
    flash = kit.bench("B/16", 256, 45, env={"TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"}, rounds=5)
    line = (f"{ours['model']} at batch {ours['batch_per_rank']}: {ours['images_per_second']:.0f} images/s, "
            f"{flash['images_per_second']:.0f} without cuDNN's attention")
    if missing_timm():
        return line + "; no timm here"
    rate, gib = kit.peer("B/16", 256, "eager", "amp", 60)
    again = kit.bench("B/16", 256, 30, record=False)
    rates = [statistics.mean(found["images_per_second"] for found in (ours, again)), rate]
    add_peer(kit, ours, "eager", "A B A", rates, [device_gib(ours), gib])
    return line + f"; {peer_text(kit, ours, rates, 'eager')}"


def add_peer(kit, found, mode, rounds, rates, gib):
    """A row of the table beside PyTorch; `found` is Tessera's step, `rates` and `gib` are Tessera's and the peer's."""
    ours = (found["model"], found["batch_per_rank"])
    kit.peers.append({"model": ours[0], "batch": ours[1], "mode": mode, "rounds": rounds, "rates": rates, "gib": gib,
                      "peer": REHEARSAL_PEER if kit.rehearse else ours})


def peer_text(kit, found, rates, mode):
    if kit.rehearse:  # two different models: a ratio would say nothing
        return f"timm {REHEARSAL_PEER[0]} at batch {REHEARSAL_PEER[1]}, {mode}: {rates[1]:.0f} images/s"
    return f"timm {found['model']}, {mode}: {rates[1]:.0f} images/s (ratio {rates[0] / rates[1]:.2f})"


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
    lines, faults, passed = [], [], False
    for suite in suites_of(kit):
        label = suite if suite == LAST_TEST else suite.split(".")[0]
        try:
            lines.append(f"{label} {check_tests(kit, kit.test(suite, 300 if kit.rehearse else 90))}")
            passed = True
        except Skipped as why:
            lines.append(f"{label} skipped: {why}")
        except Failed as fault:
            faults.append(f"{label}: {fault}")
    if faults:
        raise Failed("; ".join(faults) + (f" ({'; '.join(lines)})" if lines else ""))
    if not passed:
        raise Skipped("; ".join(lines))
    return "; ".join(lines)


def graphs(kit):
    """CUDA graph replay (the default on one rank) against eager execution, with a small and a large model."""
    parts = []
    for model, batch in sizes(kit, ("Ti/16", 64), ("B/16", 256)):
        plain = kit.facts.get(model) or kit.bench(model, batch, 45)
        if kit.gpu and not plain.get("replayed_passes"):
            kit.faults.append(f"{model}: no pass was replayed by default")
        rates = [f"{plain['images_per_second']:.0f}"]
        for setting in GRAPH_SETTINGS:
            found = kit.bench(model, batch, 45, [setting])
            rates.append(f"{found['images_per_second']:.0f} ({setting})")
            if kit.gpu and "off" not in setting and not found.get("replayed_passes"):
                kit.faults.append(f"{model}: no pass was replayed with {setting}")
        parts.append(f"{plain['model']} {', '.join(rates)} images/s")
    return "; ".join(parts)


def sizes(kit, *wanted):
    """The (model, batch) pairs of a step; a rehearsal takes one pair for all."""
    return list(dict.fromkeys(kit.sized(model, batch) for model, batch in wanted))


def switches(kit):
    """fp8 linear layers, and settings that are off by default until a GPU has confirmed them."""
    plain = kit.facts.get("B/16") or kit.bench("B/16", 256, 45)
    parts = [f"{plain['model']}: defaults {plain['images_per_second']:.0f}"]
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
        raise Skipped("needs timm, which this Python has not")
    lines = []
    for model, batch in models[:1] if kit.rehearse else models:
        ours, theirs = [], []
        for _ in range(1 if kit.rehearse else rounds):
            found = kit.bench(model, batch, limit, record=False)
            ours.append((found["images_per_second"], device_gib(found)))
            theirs.append(kit.peer(model, batch, mode, "amp", limit))
        rates = [statistics.median(rate for rate, _ in runs) for runs in (ours, theirs)]
        memory = [max(gib for _, gib in runs) for runs in (ours, theirs)]
        add_peer(kit, found, mode, len(ours), rates, memory)
        lines.append(f"{found['model']} {rates[0]:.0f} images/s; {peer_text(kit, found, rates, mode)}")
    return "; ".join(lines)


def compiled_peer(kit):
    """Tessera and timm with torch.compile in turn, with two models."""
    return beside(kit, "compile", [("B/16", 256), ("S/16", 256)], 2, 90)


def tuned_peer(kit):
    """Tessera and timm with torch.compile(mode="max-autotune") in turn."""
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
           ("copies", r"Memcpy|Memset|copy_|CatArray|concat_sums|fill")]


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
            "optimizer": (0, 28 * parameters / 1e9)}


def kernel_table(kit):
    """Each kernel of a training step by LibTorch's profiler, and how far the classes are from the card's peak rates."""
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
    return (f"{found['step']['model']}: {len(found['kernels'])} kernels, {1e3 * total:.1f} ms under the profiler; a step without it takes "
            f"{1e3 * found['step']['step_seconds']:.1f} ms; most time: {longest['class']}, {100 * longest['seconds'] / total:.0f} % of the kernels'")


def sanitizer(kit):
    """compute-sanitizer: memcheck, racecheck, synccheck, initcheck of kernels, memcheck of a training step with 197 tokens."""
    program = shutil.which("compute-sanitizer")
    if not program or not kit.gpu:
        raise Skipped("needs compute-sanitizer, which is not installed" if kit.gpu else "needs a GPU")
    # Every product's algorithm would be run and measured under the tool.
    environment = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "TESSERA_CUBLAS_TUNING": "0"}
    under = [program, "--error-exitcode", "9", "--report-api-errors", "no", "--tool"]
    step = [KIT / "bin/tessera", "bench", "step", "--model", "Ti/16", "--batch", "2", "--rounds", "1", "--quiet"]
    kernels = "CudaKernels.AreLibTorchs"  # every kernel, small
    clean, unfinished = [], []
    # initcheck does not see what the bulk copies of cuBLASLt's and cuDNN's kernels write: kernels of ours alone.
    for name, run in (("memcheck of a step", lambda: kit.run([*under, "memcheck", *step], 45, environment)),
                      ("memcheck of kernels", lambda: kit.test(kernels, 40, environment, [*under, "memcheck"])),
                      ("racecheck", lambda: kit.test(kernels, 40, environment, [*under, "racecheck"])),
                      ("synccheck", lambda: kit.test(kernels, 40, environment, [*under, "synccheck"])),
                      ("initcheck", lambda: kit.test(kernels, 40, environment, [*under, "initcheck"]))):
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
    """Hardware counters (ncu) of the launches of a training step: each kernel's share of the card's peak rates."""
    program = shutil.which("ncu")
    if not program or not kit.gpu:
        raise Skipped("needs ncu, which is not installed" if kit.gpu else "needs a GPU")
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
    """A training step of three other model sizes, in bf16 and in fp8."""
    parts = []
    for model, batch in sizes(kit, ("S/16", 256), ("L/16", 128), ("H/14", 64)):
        plain = kit.bench(model, batch, 60, rounds=5)
        fp8 = kit.bench(model, batch, 60, ["precision.linear=fp8"], rounds=5)
        parts.append(f"{plain['model']} {plain['images_per_second']:.0f}, fp8 {fp8['images_per_second']:.0f}")
    return "; ".join(parts) + " images/s"


JPEG_RECIPE = """
name = "jpeg"
[model]
preset = "{model}"
[data]
source = "folder:{folder}"
train = "train[8:]"
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
    """A training from JPEG files, with all cores of the machine."""
    folder = kit.scratch / "jpegs"
    made = kit.run([sys.executable, KIT / "tools/make_images.py", "none", folder, 40 if kit.rehearse else 2000], 60)
    if made.code != 0:
        if kit.gpu:
            made.check("JPEG files (they take numpy and Pillow)")
        for i in range(40):  # enough to rehearse with
            place = folder / "train" / f"class{i % 2}"
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(KIT / "tools/small.jpg", place / f"{i}.jpg")
    model, batch = kit.sized("B/16", 256)
    steps = 4 if kit.rehearse else 40
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
    files = "40 copies of one small file; numpy and Pillow are not installed" if made.code != 0 else made.text.strip().splitlines()[-1].split(", in ")[0]
    return f"{model} {rate:.0f} images/s, {100 * wait:.0f} % of the time waiting for data, {os.cpu_count()} cores ({files})"


def two_ranks(kit):
    """Images per second of two ranks on one GPU (run.share_gpu)."""
    found = kit.bench("Ti/16", 64, 45, ["run.share_gpu=true"], more=["--procs", "2"], note="2 ranks on one GPU")
    return f"{found['model']} {found['images_per_second']:.0f} images/s"


# name, step, seconds that must be left for it to begin
STEPS = [("facts", facts, 5), ("comparisons", comparisons, 10), ("number", first_number, 30), ("peaks", peaks, 10),
         ("tests", gpu_tests, 30), ("layouts", layouts, 30), ("plan", plan, 40), ("pretended", pretended, 40), ("graphs", graphs, 20),
         ("switches", switches, 20), ("kernels", kernel_table, 15),
         ("sanitizer", sanitizer, 60), ("counters", counters, 40), ("compiled", compiled_peer, 60), ("sizes", other_sizes, 20),
         ("jpegs", jpegs, 20), ("ranks", two_ranks, 20), ("tuned", tuned_peer, 90)]


def run_step(kit, name, step, needed):
    """(result, text)"""
    if kit.left() < (0 if kit.rehearse else needed):
        return "skipped", f"{max(0.0, kit.left()):.0f} s were left, it needs {needed}"
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
        if options.out.exists() and any(options.out.iterdir()):
            parser.error(f"OUT is {options.out}, which is not empty: name a new folder, so that no earlier results are lost")
    except OSError as error:
        parser.error(f"OUT is {options.out}, which cannot be read: {error.strerror}")
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
        try:
            kit.check_start()
            kit.open_output()
        except CannotStart as why:
            print(f"run.sh: error: {why}", file=sys.stderr)
            return 2
        except OSError as error:
            print(f"run.sh: error: OUT is {kit.out}, which cannot be written: {error.strerror}", file=sys.stderr)
            return 2
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
