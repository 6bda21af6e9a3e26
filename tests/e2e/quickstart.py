# SPDX-License-Identifier: Apache-2.0
"""The quickstart from the front door: what it reaches, how long it trains, and how fast a second run begins."""
import json
import os
import re
import subprocess
import time

from harness import SOURCE, Skip, check, main, scratch

TOP1 = 87.0            # percent
TRAIN_SECONDS = 240.0  # on two cores with AMX
BEGIN_SECONDS = 3.0    # of a run that has nothing to install


def dev(*words):
    """./dev of this checkout, as it was built."""
    if not (SOURCE / ".venv").exists():
        raise Skip("built without ./dev")
    environment = {**os.environ, "CMAKE_BUILD_PARALLEL_LEVEL": "1"}
    start = time.monotonic()
    result = subprocess.run([SOURCE / "dev", *map(str, words)], env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=1500)
    check(result.returncode == 0, "exit", result.returncode, result.stdout[-3000:])
    return result.stdout, time.monotonic() - start


def a_second_run_begins_at_once():
    for words, expected in ((("quickstart", "--dry-run"), "dry run of quickstart on 2 ranks"),
                            (("test", "-N"), "Total Tests: ")):
        dev(*words)  # whatever was to do is done
        text, seconds = dev(*words)
        print(f"  {' '.join(words)}: {seconds:.1f} s", flush=True)
        check(expected in text, text)
        check("installing" not in text and "configuring" not in text, text)
        check(seconds <= BEGIN_SECONDS, words, "began after", seconds, "s")


def reaches_its_figures():
    with scratch() as folder:
        text, _ = dev("quickstart", "--set", f"run.dir={folder}/run")
        found = json.loads((folder / "run/summary.json").read_text())
        print({name: found[name] for name in ("val_top1", "train_seconds", "images_per_second")}, flush=True)
        check(found["val_top1"] >= TOP1, "top-1", found["val_top1"])
        check(found["val_samples"] == 10_000 and found["world_size"] == 2, found)
        check({unit["level"] for unit in found["plan"]["units"]} == {"zero3"}, found["plan"])
        check(re.search(r"report +\S+report\.html", text) and (folder / "run/report.html").exists(), text[-2000:])
        with open("/proc/cpuinfo") as cpu:
            if " amx_bf16" in cpu.read() and os.cpu_count() >= 2:
                check(found["train_seconds"] <= TRAIN_SECONDS, "trained for", found["train_seconds"], "s")
            else:
                print(f"no AMX: the limit of {TRAIN_SECONDS} s was not checked", flush=True)


main(a_second_run_begins_at_once, reaches_its_figures)
