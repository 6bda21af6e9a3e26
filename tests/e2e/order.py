# SPDX-License-Identifier: Apache-2.0
"""Splits, mixes, remainders, copies and the memory of samples, asked of the program; nothing stays behind killed ranks."""
import os
import pathlib
import signal

from files import make_image_folder
from harness import check, main, scratch, settings, summary, train


def keys_for(folder, **more):
    return settings(data__source=f"folder:{make_image_folder(folder / 'photos')}", train__batch=16, train__steps=6, **more)


def parts_of_a_split():
    with scratch() as folder:
        keys = keys_for(folder, data__train="train[:90%]", data__val="train[90%:]", data__remainder="keep",
                        data__repeats=3, data__ram_cache="full")
        text = train(folder, "--procs", 2, *keys).done()
        check("72 training and 8 validation images" in text, text)
        check("steps: 6 (5 an epoch" in text, "4 of 16 images and one of 8", text)
        check("ram cache: up to " in text and "all 72 samples take about " in text, text)
        found = summary(folder / "run")
        check(found["val_samples"] == 8 and found["broken_train_samples"] == 0, found)


def several_sources():
    with scratch() as folder:
        keys = keys_for(folder, data__mix=f"folder:{folder / 'photos'}", data__mix_weights="[3, 1]",
                        data__order="shards", data__remainder="carry")
        text = train(folder, "--procs", 2, *keys).done()
        check("160 training and 80 validation images" in text, text)


def memory_of_samples(pid="[0-9]*"):
    """Which memories of samples are open, once for each descriptor: all processes', or one's."""
    found = []
    for descriptor in pathlib.Path("/proc").glob(f"{pid}/fd/*"):
        try:
            if "memfd:tessera-samples" in os.readlink(descriptor):
                found.append(os.stat(descriptor).st_ino)
        except OSError:
            pass
    return found


def killed_ranks():
    with scratch() as folder:
        run = train(folder, "--procs", 2, *keys_for(folder, data__ram_cache="part", data__ram_cache_gib=0.5),
                    *settings(train__steps=1000000))
        run.wait_for_text("step 2/")
        ranks = run.ranks()
        held = [memory_of_samples(pid) for pid in ranks.values()]
        check(held[0] == held[1] and len(held[0]) == 1, "one memory, open in both ranks", held)
        for pid in ranks.values():
            os.kill(pid, signal.SIGKILL)
        run.wait(60)
        check(held[0][0] not in memory_of_samples(), "the memory went with the ranks")
        check(not list(pathlib.Path("/dev/shm").glob("*tessera*")), os.listdir("/dev/shm"))
        run.check_nothing_left()


if __name__ == "__main__":
    main(parts_of_a_split, several_sources, killed_ranks)
