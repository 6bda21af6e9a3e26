# SPDX-License-Identifier: Apache-2.0
"""The moving average of the weights through the program: evaluated, predicted with, exported and evaluated from the file."""
import json
import subprocess

from files import png
from finetune import SMALL_VIT, read_safetensors
from harness import check, main, scratch, settings, summary, tessera, train

DATA = settings(data__source="fake:256", train__eval_batch=16, data__mean="[0.5]", data__std="[0.5]", precision__compute="fp32")


def evaluate(folder, place, *words):
    out = tessera("eval", place, "--json", *words, *DATA, folder=folder, stderr=subprocess.DEVNULL).done()
    return json.loads(out[out.index("{"):])


def train_with_average(folder, run="run"):
    train(folder, "--procs", 2, *settings(**SMALL_VIT, train__steps=8, ema__decay=0.9, optimizer__lr=0.01,
                                          schedule__warmup_steps=0), *DATA, run=run).done()


def eval_and_export_take_it_in_the_place_of_the_weights():
    with scratch() as folder:
        train_with_average(folder)
        weights, average = evaluate(folder, "run"), evaluate(folder, "run", "--ema")
        check(abs(weights["loss"] - average["loss"]) > 1e-3, "the average is not the weights:", weights, average)
        told = summary(folder / "run")
        check(abs(told["val_loss"] - weights["loss"]) < 1e-6 and abs(told["val_loss_ema"] - average["loss"]) < 1e-6, told, average)
        check(evaluate(folder, "run", "--ema", "--procs", 2)["top1"] == average["top1"], average)
        for words, expected in (((), weights), (("--ema",), average)):
            file = folder / f"of{len(words)}.safetensors"
            tessera("checkpoint", "export", "run", file, *words, folder=folder).done()
            found = evaluate(folder, file, "--set", "model.heads=2")
            check(found["samples"] == expected["samples"] == weights["samples"], found, expected)
            check(abs(found["loss"] - expected["loss"]) < 1e-6 and found["top1"] == expected["top1"], words, found, expected)
        tessera("checkpoint", "consolidate", "run", "-o", "whole.safetensors", "--ema", folder=folder).done()
        exported = read_safetensors(folder / "of1.safetensors")
        check(read_safetensors(folder / "whole.safetensors") == exported, "consolidate --ema writes something else")
        plain = read_safetensors(folder / "of0.safetensors")
        check(plain.keys() == exported.keys() and all(plain[name] != exported[name] for name in ("head.weight", "pos_embed")),
              "names or values")


def predict_takes_it_too():
    with scratch() as folder:
        train_with_average(folder)
        image = folder / "a.png"
        image.write_bytes(png(12, lambda x, y: 20 * x % 256))
        tessera("checkpoint", "export", "run", "average.safetensors", "--ema", folder=folder).done()
        found = []
        for words in (("run",), ("run", "--ema"), ("average.safetensors", "--set", "model.heads=2")):
            out = tessera("predict", words[0], image, "--json", *words[1:], *DATA, folder=folder, stderr=subprocess.DEVNULL).done()
            found.append({one["class"]: one["probability"] for one in json.loads(out)[0]["predictions"]})
        weights, average, file = (sorted(one.values()) for one in found)
        check(max(abs(a - b) for a, b in zip(average, file, strict=True)) < 1e-6, found)
        check(max(abs(a - b) for a, b in zip(average, weights, strict=True)) > 1e-4, found)


def a_run_without_one_says_so():
    with scratch() as folder:
        train(folder).done()
        run = tessera("eval", "run", "--ema", folder=folder)
        check(run.wait() == 2 and " has no moving average of the weights: expected a checkpoint of a run with ema.decay above 0" in run.text(), run.text())
        run = tessera("checkpoint", "export", "run", "average.safetensors", "--ema", folder=folder)
        check(run.wait() == 2 and "error: [checkpoint." in run.text() and run.text().count("\n") == 1, run.text())
        check(not (folder / "average.safetensors").exists(), "a file was written all the same")


if __name__ == "__main__":
    main(eval_and_export_take_it_in_the_place_of_the_weights, predict_takes_it_too, a_run_without_one_says_so)
