# SPDX-License-Identifier: Apache-2.0
"""Memory of real runs beside the formula that `tessera models` prints, and the step of a model larger than this machine.

TESSERA_E2E_MEMORY: "small" the table of layouts, "10B" and "60B" one step of one rank of them, "10B_tensor" of ViT-10B
whose blocks are cut, "pretend" (default) what --pretend-world writes and refuses.
"""
import json
import os

from harness import SOURCE, check, main, scratch, settings, summary, tessera, train

MEDIUM = """
name = "medium"
[model]
image_size = 64
patch_size = 8
width = 512
depth = 8
heads = 8
mlp_width = 2048
classes = 10
class_token = false
pool = "gap"
[data]
source = "fake:256"
[train]
batch = 64
steps = 3
log_every = 1
[checkpoint]
every_epochs = 0
[run]
threads = 1
"""
LEAST, MOST = 0.7, 1.1  # measured / predicted

# ranks, and what is set
CASES = [(1, {}), (1, {"shard__recompute": "true"}), (1, {"precision__compute": '"fp32"'})]
CASES += [(2, {"shard__level": f'"{level}"', "precision__compute": f'"{dtype}"'})
          for level in ("replicate", "zero1", "zero2", "zero3") for dtype in ("fp32", "bf16")]
CASES += [(2, {"shard__recompute": "true", "precision__compute": '"bf16"'}),
          (2, {"shard__recompute": "true", "precision__compute": '"fp32"', "train__accumulation": 2}),
          (3, {"shard__prefetch": 2, "precision__reduce": '"bf16"', "train__batch": 48}),
          (2, {"checkpoint__async": "true", "checkpoint__every_steps": 1}),
          (4, {"shard__level": '"zero2"', "shard__recompute": "true"}),
          (4, {"shard__ranks": 2, "shard__recompute": "true"})]
# Micro-batches of one image: what each keeps are small tensors, with holes between them where malloc places them.
CASES += [(2, {"parallel__pipeline": 2, "parallel__schedule": f'"{schedule}"', "parallel__micro_batches": 64, "model__width": 256,
               "precision__compute": f'"{dtype}"'})
          for schedule in ("gpipe", "1f1b") for dtype in ("fp32", "bf16")]


def ratio_of(folder, ranks, changes):
    recipe = folder / "medium.toml"
    recipe.write_text(MEDIUM)
    train(folder, "--procs", ranks, *settings(**changes), recipe=recipe).done(200)
    found = summary(folder / "run")
    return found["training_memory_bytes"], found["predicted_memory_bytes"]


def the_quickstart_follows_the_formula():
    """A small model, where the program's own growth is a third of all."""
    with scratch() as folder:
        words = settings(data__source="fake:4000", train__steps=20, train__eval_every_epochs=0, checkpoint__every_epochs=0)
        train(folder, "--procs", 2, *words, recipe=SOURCE / "recipes/quickstart.toml").done(200)
        found = summary(folder / "run")
        ratio = found["training_memory_bytes"] / found["predicted_memory_bytes"]
        print(f"  quickstart: predicted {found['predicted_memory_bytes'] >> 20} MiB, {ratio:.2f}", flush=True)
        check(LEAST <= ratio <= MOST, ratio)


def follows_the_formula():
    bad = []
    for ranks, changes in CASES:
        with scratch() as folder:
            measured, predicted = ratio_of(folder, ranks, changes)
        ratio = measured / predicted
        print(f"  {ranks} ranks {changes}: measured {measured >> 20} MiB, predicted {predicted >> 20} MiB, "
              f"{ratio:.2f}", flush=True)
        if not LEAST <= ratio <= MOST:
            bad.append((ranks, changes, ratio))
    check(not bad, "outside of the bounds:", bad)


def a_teacher_is_counted():
    """One that is larger than its student."""
    with scratch() as folder, scratch() as other:
        recipe = folder / "medium.toml"
        recipe.write_text(MEDIUM)
        # After one step: what it answers does not matter here.
        once = settings(model__depth=24, train__steps=1, checkpoint__every_steps=1)
        train(folder, *once, recipe=recipe, run="teacher").done(200)
        alone = ratio_of(other, 2, {})[1]
        measured, predicted = ratio_of(folder, 2, {"distill__teacher": folder / "teacher"})
        print(f"  with a teacher: measured {measured >> 20} MiB, predicted {predicted >> 20} MiB", flush=True)
        check(LEAST <= measured / predicted <= MOST, measured, predicted)
        check(predicted > 1.5 * alone, predicted, alone)


def one_step(name, world, most_gib, parameters):
    """One rank's whole step: summary.json, and nothing else is claimed."""
    with scratch() as folder:
        recipe = SOURCE / f"recipes/{name}.toml"
        run = train(folder, "--pretend-world", world, recipe=recipe)
        text = run.done(3000)
        found = summary(folder / "run")
        print(f"  {name}: {found['train_seconds']:.0f} s, peak {found['peak_rss_bytes'] / 2**30:.2f} GiB, loss "
              f"{found['loss']:.3f}, predicted {found['predicted_memory_bytes'] / 2**30:.2f} GiB", flush=True)
        check(found["pretended"] is True and found["world_size"] == world and found["steps"] == 1, found)
        check(found["parameters"] == parameters, found["parameters"])
        check(found["peak_rss_bytes"] <= most_gib * 2**30, "peak", found["peak_rss_bytes"])
        check(0 < found["loss"] < 1e3 and 0 < found["gradient_norm"] < 1e9, found)
        check(found["training_memory_bytes"] <= MOST * found["predicted_memory_bytes"], found)
        traffic = found["communication"]["shard"]
        for kind, times in (("all_gather", 2 * 2), ("reduce_scatter", 2)):
            # Bytes sent: a share of (N - 1) / N of every parameter, for gathers twice but for the head's.
            most = times * parameters * (world - 1) / world
            check(0.99 * most < traffic[kind]["bytes_sent"] <= 1.001 * most, kind, traffic)
        check(not any((folder / "run").glob("checkpoints/*")), "a checkpoint was saved")
        check(not any("val" in key or "top1" in key for key in found), found)
        check("nothing is trained or saved" in text, text)


def ten_billion_over_tensor_groups():
    """Rank 0 of tensor 4 x zero3 over 32: its peak is the predicted one within 10 %."""
    with scratch() as folder:
        words = settings(parallel__tensor=4, train__batch=128, train__batch_per_rank=1)
        train(folder, "--pretend-world", 128, "--fake-data=1280", *words, recipe=SOURCE / "recipes/vit_10b.toml").done(1000)
        found = summary(folder / "run")
        measured, predicted = found["training_memory_bytes"], found["predicted_memory_bytes"]
        print(f"  tensor 4 x zero3 over 32: {found['train_seconds']:.0f} s, measured {measured / 2**30:.2f} GiB, predicted "
              f"{predicted / 2**30:.2f} GiB, {measured / predicted:.3f}", flush=True)
        check(found["network"]["bytes_per_second"] > 0, found["network"])
        check(0.9 <= measured / predicted <= 1.1, measured, predicted)


def ten_billion():
    one_step("vit_10b", 128, 6, 10077917160)


def sixty_billion():
    one_step("vit_60b", 1024, 12, 60423281640)


def a_stage_of_a_hundred_and_twenty_billion():
    """The first of 8 stages, in tensor groups of 8 ranks, zero3 over 32: measured memory within 10 % of the prediction."""
    with scratch() as folder:
        recipe = SOURCE / "recipes/vit_120b.toml"
        few = settings(parallel__micro_batches=4, train__batch=1024)
        train(folder, "--pretend-world", 2048, "--fake-data=4096", *few, recipe=recipe).done(3000)
        found = summary(folder / "run")
        ratio = found["training_memory_bytes"] / found["predicted_memory_bytes"]
        print(f"  vit_120b: {found['train_seconds']:.0f} s, predicted {found['predicted_memory_bytes'] / 2**30:.2f} GiB, measured {ratio:.3f} of it",
              flush=True)
        check(found["parameters"] == 120827649000, found["parameters"])
        check(0.9 <= ratio <= MOST, ratio)


def small_pretended_run():
    """What a pretended run writes and refuses."""
    with scratch() as folder:
        run = train(folder, "--pretend-world", 8, "--pretend-steps", 2, *settings(train__batch=64))
        run.done()
        found = summary(folder / "run")
        check(found["pretended"] is True and found["steps"] == 2 and found["world_size"] == 8, found)
        check(found["communication"]["shard"]["reduce_scatter"]["calls"] == 2 * 4, found)
        check(found["network"] == {"bytes_per_second": 25e9 / 8, "latency": 50e-6}, found["network"])
        slow = train(folder, "--pretend-world", 8, "--pretend-gbits", 0.01, "--pretend-latency", 0, *settings(train__batch=64), run="slow")
        slow.done()
        slow = summary(folder / "slow")
        check(slow["network"] == {"bytes_per_second": 1.25e6, "latency": 0}, slow["network"])
        sent = sum(of["bytes_sent"] for of in slow["communication"]["shard"].values())  # as much is received
        check(slow["train_seconds"] >= 0.9 * sent / 1.25e6, slow["train_seconds"], sent)
        for name in ("report.html", "checkpoints"):
            check(not (folder / "run" / name).exists(), name, "was written")
        stages = settings(train__batch=64, parallel__pipeline=2, parallel__micro_batches=4)
        train(folder, "--pretend-world", 8, *stages, run="stages").done()
        sent = summary(folder / "stages")["communication"]["rank 0 to rank 4"]["send"]
        check(sent["calls"] == 1 + 1 + 2 * 4, sent)  # the length of notes, a shape, 4 notes, 4 activations
        first = summary(folder / "stages")
        train(folder, "--pretend-world", 8, "--pretend-rank", 6, "--set", "run.trace=1", *stages, run="last").done()
        last = summary(folder / "last")
        check((first["rank"], first["stage"], last["rank"], last["stage"]) == (0, 0, 6, 1), first, last)
        check(last["communication"]["rank 6 to rank 2"]["send"]["calls"] == 4, last["communication"])  # gradients
        # The first stage has two micro-batches under way and images, the last one.
        check(last["predicted_memory_bytes"] < first["predicted_memory_bytes"], last, first)
        check(last["loss"] > 0, last)
        ranks = {event["pid"] for event in json.loads((folder / "last/trace.json").read_text())["traceEvents"]}
        check(ranks == {6}, "the trace has other ranks than the one that ran:", ranks)
        refused = tessera("trace", "last", folder=folder)
        check(refused.wait() == 2 and "[trace] last is a run of --pretend-world" in refused.text(), refused.text())
        for words, expected in (
                (("--pretend-world", 0), "[train] --pretend-world is 0 and --pretend-steps 1: expected at least 2 for "
                                         "--pretend-world"),
                (("--pretend-world", 1), "[train] --pretend-world is 1 and --pretend-steps 1: expected at least 2 for "
                                         "--pretend-world"),
                (("--pretend-world", 8, "--procs", 2), "[train] --pretend-world runs one process, but --procs asks for 2"),
                (("--pretend-world", 8, "--resume"), "[train] --pretend-world cannot resume: it neither loads nor saves checkpoints"),
                (("--pretend-world", 8, "--pretend-gbits", -1), "[train] --pretend-gbits is -1 and --pretend-latency 50: "
                                                                "expected at least 0 for both"),
                (("--pretend-world", 8, "--pretend-rank", 8), "[train] --pretend-rank is 8: expected 0 to 7, a rank of --pretend-world 8"),
                (("--pretend-world", 8, "--pretend-rank", -1), "[train] --pretend-rank is -1: expected 0 to 7"),
                (("--pretend-rank", 1), "[train] --pretend-rank 1 has no effect alone"),
                (("--pretend-world", 5, *settings(train__batch_per_rank=8)), "expected a multiple of 5 ranks")):
            failed = train(folder, *words, run="refused")
            check(failed.wait() == 2, words, failed.text())
            check(expected in failed.text(), words, failed.text())
        with_launcher = train(folder, "--pretend-world", 8, run="refused",
                              env={"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"})
        check(with_launcher.wait() == 2, with_launcher.text())
        check("--pretend-world runs one process, but launcher environment asks for 2" in with_launcher.text(),
              with_launcher.text())
        text = train(folder, "--pretend-world", 8, "--dry-run", run="dry").done()
        check("8 (pretend)" in text and "dry run" in text, text)


TESTS = {"pretend": (small_pretended_run,), "10B": (ten_billion,), "10B_tensor": (ten_billion_over_tensor_groups,), "60B": (sixty_billion,),
         "120B": (a_stage_of_a_hundred_and_twenty_billion,),
         "small": (the_quickstart_follows_the_formula, follows_the_formula, a_teacher_is_counted)}

if __name__ == "__main__":
    main(*TESTS[os.environ.get("TESSERA_E2E_MEMORY", "pretend")])
