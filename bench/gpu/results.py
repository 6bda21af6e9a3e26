# SPDX-License-Identifier: Apache-2.0
"""Writes results.md, next.md and results.json of a GPU kit."""
import datetime
import json

from kit import device_gib, number


def speed_rows(kit):
    yield ("| model, batch | dtype | setting | images/s | ms a step | TFLOP/s | % of the GEMM rate | GiB | replays |")
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for found in kit.speeds:
        yield (f"| {found['model']}, {found['batch_per_rank']} | {found['dtype']} | {found['setting'] or 'defaults'} "
               f"| {found['images_per_second']:.1f} | {1e3 * found['step_seconds']:.2f} | {found['tflops']:.2f} "
               f"| {100 * found['share_of_gemm_rate']:.0f} % of {found['gemm_tflops']:.1f} TFLOP/s | {device_gib(found):.2f} "
               f"| {found.get('replayed_passes', '-')} |")


def peer_rows(kit):
    yield "| model, batch | peer | rounds in turn | Tessera, images/s | peer, images/s | ratio | Tessera, GiB | peer, GiB |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for found in kit.peers:
        peer_model, peer_batch = found["peer"]
        ratio = "-" if kit.rehearse else f"{found['rates'][0] / found['rates'][1]:.2f}"
        yield (f"| {found['model']}, {found['batch']} | timm {peer_model}, {peer_batch}, {found['mode']}, autocast | {found['rounds']} "
               f"| {found['rates'][0]:.1f} | {found['rates'][1]:.1f} | {ratio} | {found['gib'][0]:.2f} | {found['gib'][1]:.2f} |")


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
    yield "The 25 kernels that take longest. Compute and memory are percentages of the card's peak, from its counters (step `counters`)."
    yield ""
    yield "| kernel | class | calls | ms | share | compute | memory |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for kernel in found["kernels"][:25]:
        counted = ncu.get(kernel["name"])
        compute, memory = ("-", "-") if counted is None else (f"{counted[0]:.0f} %", f"{counted[1]:.0f} %")
        name = kernel["name"].replace("|", "\\|").replace("void at::native::", "").replace("(anonymous namespace)::", "")
        yield (f"| `{name[:160]}` | {kernel['class']} | {kernel['calls']:g} | {1e3 * kernel['seconds']:.3f} "
               f"| {100 * kernel['seconds'] / total:.1f} % | {compute} | {memory} |")


def layout_rows(kit):
    yield "| dtype | layout | ranks | largest relative difference of a loss | allowed |"
    yield "| --- | --- | --- | --- | --- |"
    for found in kit.layouts:
        yield f"| {found['dtype']} | {found['layout']} | {found['ranks']} | {found['apart']:.1e} | {found['limit']:.0e} |"


def prediction_rows(kit):
    yield "| what | step predicted, ms | measured | error | memory predicted, GiB | measured | error |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    memory = [(found["what"], None, found["step_seconds"], found["predicted_bytes"], found["measured_bytes"]) for found in kit.pretended]
    for what, *values in [(found["what"], *found["seconds"], *found["bytes"]) for found in kit.predictions] + memory:
        cells = []
        for predicted, measured, scale in ((*values[:2], 1e3), (*values[2:], 2**-30)):
            error = "-" if None in (predicted, measured) else f"{100 * (predicted / measured - 1):+.1f} %"
            cells += [*[number(value and value * scale, 2) for value in (predicted, measured)], error]
        yield f"| {what} | {' | '.join(cells)} |"


def write_whole(path, text):
    """The whole text, or the file stays as it was (a full disk)."""
    other = path.with_name(path.name + ".new")
    try:
        other.write_text(text, encoding="utf-8")
        other.replace(path)
    finally:
        other.unlink(missing_ok=True)


def write_results(kit):
    lines = ["# On a GPU" if kit.gpu else "# Rehearsal of the GPU kit on a CPU", "", *rehearsal_note(kit)]
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
    if kit.layouts:
        lines += ["", "## Layouts", "", "Losses of 6 steps of `recipes/quickstart.toml` beside those of one rank.", "", *layout_rows(kit)]
    if kit.predictions or kit.pretended:
        lines += ["", "## Predicted and measured", "", "`tessera plan` beside `tessera bench step` and `train --pretend-world`.", "",
                  *prediction_rows(kit)]
    if kit.peers:
        lines += ["", "## Beside PyTorch", "", "`peers/vit_step.py` in turn with `tessera bench step`; medians.", "", *peer_rows(kit)]
    if kit.kernels:
        step = kit.kernels["step"]
        lines += ["", f"## Kernels of a step of {step['model']} at batch {step['batch_per_rank']}", "", *kernel_rows(kit)]
    write_whole(kit.out / "results.md", "\n".join(lines) + "\n")
    write_whole(kit.out / "results.json", json.dumps({"about": kit.about, "facts": kit.facts, "peaks": kit.peaks, "steps": kit.steps,
                                                      "speeds": kit.speeds, "peers": kit.peers, "layouts": kit.layouts,
                                                      "predictions": kit.predictions, "pretended": kit.pretended, "kernels": kit.kernels}, indent=1))
    write_whole(kit.out / "next.md", next_text(kit))


def rehearsal_note(kit):
    if kit.gpu:
        return []
    model, batch = kit.sized(None, None)
    return [f"Rehearsal: every step ran model {model} at batch {batch} on a CPU; the numbers say nothing about speed.", ""]


# What to look at where a class of kernels loses much time.
ACTIONS = {"matrix products": "compare the algorithms of cuBLASLt (TESSERA_CUBLAS_TUNING) and precision.linear=fp8",
           "attention": "compare cuDNN's attention with the flash kernel (step `number`)",
           "GELU forward": "try run.keep_activations (step `switches`)",
           "GELU backward": "try run.keep_activations (step `switches`)"}
DEFAULT_ACTION = "see the kernel's memory rate by its counters (step `counters`)"


def next_text(kit):
    """Steps that failed or were skipped, then the kinds of kernel that lose most time against the card's peak rates."""
    lines = ["# What to mend next", "", *rehearsal_note(kit)]
    for title, results in (("Steps that failed; mend them before any speed:", ("failed", "error")), ("Steps that were skipped:", ("skipped",))):
        found = [f"- {name}: {text}" for name, _, result, _, text in kit.steps if result in results]
        if found:
            lines += [title, "", *found, ""]
    return "\n".join([*lines, *losses_of(kit)]) + "\n"


def losses_of(kit):
    if not kit.kernels:
        return ["Time lost in a step: unknown, because the step `kernels` gave no table."]
    found = kit.kernels
    step = found["step"]
    if kit.rehearse:
        return ["Time lost in a step: unknown, because a CPU has no kernels of a GPU."]
    losses = [(found["idle_seconds"], "no kernel runs", "compare CUDA graphs (step `graphs`): the host queues work too slowly or waits")]
    for entry in found["classes"]:
        least = entry["least_seconds"]
        if least is None:
            continue
        action = ACTIONS.get(entry["class"], DEFAULT_ACTION)
        losses.append((entry["seconds"] - least, entry["class"],
                       f"{1e3 * entry['seconds']:.2f} ms, at the peak rates {1e3 * least:.2f} ms: {action}"))
    losses.sort(reverse=True)
    lines = [f"The largest losses of a step of {step['model']} at batch {step['batch_per_rank']} "
             f"({1e3 * step['step_seconds']:.2f} ms; a loss is the time above what the peak rates would take):", ""]
    lines += [f"{i}. **{name}**: {1e3 * seconds:.2f} ms lost ({why})" for i, (seconds, name, why) in enumerate(losses[:3], 1)]
    unknown = [f"{entry['class']} {1e3 * entry['seconds']:.2f} ms" for entry in found["classes"] if entry["least_seconds"] is None]
    if unknown:
        lines += ["", f"Kernels without an estimate of their least time: {', '.join(unknown)}."]
    return lines
