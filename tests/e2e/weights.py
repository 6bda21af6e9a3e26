# SPDX-License-Identifier: Apache-2.0
"""Weights out and in: files that Tessera wrote give timm, torchvision and transformers the logits that they gave before.

The half of this file below `shown` runs under the Python that has torch, timm, torchvision, transformers, safetensors.
"""
import json
import math
import pathlib
import subprocess
import sys

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "weights/fixtures"
TOLERANCE = 1e-4
HEADS = ("--heads", 2)


def convert(folder, *words):
    """The tool's output; both of its own checks must have passed."""
    from harness import check, tessera

    out = tessera("checkpoint", "convert", *words, folder=folder).done()
    check("tensors are bit for bit those of the source" in out and "logit check: 2 images" in out, out)
    return out


def refused(run):
    """The output of a command that ends as a user's error does."""
    from harness import check

    code = run.wait(60)
    check(code == 2, "exit 2 was expected:", code, run.words, run.tail())
    return run.text()


def recipe_of(folder, run):
    """The recipe that the run's only checkpoint holds."""
    from harness import checkpoints

    return json.loads((checkpoints(folder / run)[0] / "manifest.json").read_text())["recipe"]


def make_pictures(folder):
    """One of 12 px, which no evaluation resizes, of each of five classes."""
    from files import png

    for label in range(5):
        place = folder / f"pictures/val/class{label}"
        place.mkdir(parents=True)
        (place / "one.png").write_bytes(png(12, lambda x, y, label=label: (x * y * 23 + (7 + label) * (x + 2 * y)) % 256))


def tesseras_logits(folder, run):
    """Tessera's logits of the pictures, a safetensors file: tensor "head" (5, 5)."""
    from harness import settings, tessera

    out = folder / f"{run}.logits"
    tessera("eval", run, "--features", out, "--units", "head", folder=folder,
            *settings(data__source="folder:pictures", data__eval_crop_ratio=1, data__mean="[0.5]", data__std="[0.5]",
                      precision__compute="fp32", run__threads=1)).done()
    return out


def others_give_the_same_logits(folder):
    from harness import check
    from peers import peers_python

    python = peers_python("torch", "timm", "torchvision", "transformers", "safetensors")
    expected = json.loads((FIXTURES / "expected.json").read_text())["timm.safetensors"]["logits"]
    out = convert(folder, FIXTURES / "timm.safetensors", "source/checkpoints", "--ranks", 3, *HEADS)
    check("largest difference 0\n" in out and "read back: 32 of 32 tensors" in out, out)
    check("\neval_batch = 64 " in recipe_of(folder, "source"), "evaluated one image at a time")
    make_pictures(folder)
    for family, output, more in (("timm", "timm.safetensors", ()), ("torchvision", "torchvision.safetensors", ()),
                                 ("npz", "google.npz", ()), ("big_vision", "big_vision.npz", ()), ("hf", "hf", ()),
                                 ("hf", "hf_sharded", ("--max-shard-size", "8KB"))):
        convert(folder, "source", output, "--to", family, *more)
        convert(folder, output, f"from_{output}/checkpoints", *HEADS)  # and back in
        ours = tesseras_logits(folder, f"from_{output}")
        done = subprocess.run([python, __file__, "logits", family, folder / output, folder / "pictures", ours],
                              capture_output=True, text=True, timeout=300)
        check(done.returncode == 0, family, done.stdout, done.stderr)
        found = json.loads(done.stdout.splitlines()[-1])
        out = max(abs(a - b) for a, b in zip(found["formula"], expected, strict=True))
        back = max(abs(a - b) for a, b in zip(found["pictures"], found["tessera"], strict=True))
        print(f"  {output}: largest difference {out:.2e}; of Tessera's logits after the way back {back:.2e}", flush=True)
        check(out <= TOLERANCE and back <= TOLERANCE, output, found, expected)
    shards = sorted((folder / "hf_sharded").glob("*.safetensors"))
    check(len(shards) >= 3 and not (folder / "hf_sharded/model.safetensors").exists(), shards)


def features_are_those_of_the_others(folder):
    """Backbones that timm and transformers wrote without a classifier, and a distilled DeiT with and without; the file of
    features is read by the safetensors package as docs/metrics.md shows."""
    from harness import check, settings, tessera
    from peers import peers_python

    python = peers_python("torch", "timm", "transformers", "safetensors")
    (folder / "backbones").mkdir()
    done = subprocess.run([python, __file__, "write_backbones", folder / "backbones", folder / "pictures"],
                          capture_output=True, text=True, timeout=300)
    check(done.returncode == 0, done.stdout, done.stderr)
    expected = json.loads(done.stdout.splitlines()[-1])
    check(len(expected) == 5, expected.keys())
    for name, values in expected.items():
        # bf16 is what a CPU with instructions for it computes in where nothing is said; features are float32 all the same.
        run = tessera("eval", folder / "backbones" / name, "--features", folder / "features.safetensors", folder=folder,
                      *settings(data__source="folder:pictures", data__eval_crop_ratio=1, data__mean="[0.5]",
                                data__std="[0.5]", model__heads=2, run__threads=1)).done()
        done = subprocess.run([python, __file__, "read_features", folder / "features.safetensors"],
                              capture_output=True, text=True, timeout=300)
        check(done.returncode == 0, name, done.stdout, done.stderr)
        found = json.loads(done.stdout.splitlines()[-1])
        check(found["names"] == [f"val/class{label}/one.png" for label in range(5)], found["names"])
        check(found["labels"] == list(range(5)) and found["dtype"] == "torch.float32", found["labels"], found["dtype"])
        check(("no classifier: only features are computed" in run) == (name != "deit_distilled.safetensors"), name, run)
        largest = max(abs(a - b) for a, b in zip(found["features"], values, strict=True))
        print(f"  features of {name}: largest difference {largest:.2e}", flush=True)
        check(largest <= TOLERANCE, name, found["features"], values)


def a_check_without_logits_compares_features(folder):
    from harness import check, tessera

    for name, words, reason in (
            ("mae_encoder.pth", (), "there is no head"),
            ("timm.safetensors", ("--to-finetune", "--classes", 3), "all images have the same logits (a head of zeros)"),
            ("timm.safetensors", ("--to-finetune", "--classes", 3, "--head-bias", -7), "all images have the same logits"),
            ("deit_distilled.safetensors", ("--to-finetune", "--classes", 3), "all images have the same logits"),
            ("torchvision_tanh.pth", ("--to-finetune", "--head", "zero"), "all images have the same logits")):
        (folder / "out.safetensors").unlink(missing_ok=True)
        out = tessera("checkpoint", "convert", FIXTURES / name, "out.safetensors", "--to", "timm", *words, *HEADS,
                      folder=folder).done()
        check(f"logit check: {reason}" in out and "; features are compared instead\nfeature check: 2 images" in out, out)
        check(", 16 features each up to " in out and "each up to 0:" not in out and "largest difference 0\n" in out, out)


FINETUNE = """
name = "finetune"
[model]
image_size = 20
patch_size = 4
width = 16
depth = 2
heads = 2
mlp_width = 32
classes = 3
[data]
source = "fake:64"
[train]
batch = 8
steps = 3
log_every = 1
[precision]
compute = "fp32"
[run]
threads = 1
"""


def a_fine_tuning_can_begin_with_them(folder):
    from harness import check, losses, summary, tessera, train

    out = tessera("checkpoint", "convert", FIXTURES / "timm.safetensors", "larger/checkpoints", "--to-finetune",
                  "--image-size", 20, "--classes", 3, "--pos", "linear", *HEADS, folder=folder).done()
    check("pos_embed: 3 x 3 -> 5 x 5 patches, linear" in out and "head.weight: 5 -> 3 classes, all 0" in out, out)
    check("read back: 29 of 29 tensors are bit for bit" in out, out)
    recipe = folder / "finetune.toml"
    recipe.write_text(FINETUNE)
    out = train(folder, "--procs", 2, "--resume", folder / "larger", recipe=recipe).done()
    check("resumed from" in out and [step for step, _ in losses(folder / "run")] == [1, 2, 3], out)
    # The head is all zeros, so the first loss is that of guessing.
    check(abs(losses(folder / "run")[0][1] - math.log(3)) < 1e-5, losses(folder / "run"))
    check(summary(folder / "run")["steps"] == 3, "steps")


def grey_pictures_in_larger_patches(folder):
    """The first layer takes one channel and patches of 5 px; all but it and the positions stays."""
    from harness import check, losses, tessera, train

    grey = ("--to-finetune", "--channels", 1, "--patch-size", 5, "--image-size", 20, *HEADS)
    out = tessera("checkpoint", "convert", FIXTURES / "timm.safetensors", "grey/checkpoints", *grey, folder=folder).done()
    for line in ("pos_embed: 3 x 3 -> 4 x 4 patches, bicubic", "patch_embed.proj.weight: 3 -> 1 channels, summed",
                 "patch_embed.proj.weight: 4 x 4 -> 5 x 5 pixels, pseudo-inverse of the bicubic resize",
                 "read back: 30 of 30 tensors are bit for bit", "largest difference 0\n"):
        check(line in out, line, out)
    for line in ("\nchannels = 1 ", "\nmean = [0.449] ", "\nstd = [0.226] "):  # of ImageNet's three, their mean
        check(line in recipe_of(folder, "grey"), line, recipe_of(folder, "grey"))
    tessera("eval", "grey", "--set", "data.source=fake:32", folder=folder).done()
    recipe = folder / "grey.toml"
    recipe.write_text(FINETUNE.replace("classes = 3", "classes = 5\nchannels = 1").replace("patch_size = 4", "patch_size = 5"))
    same = train(folder, "--set", f"train.init_from={folder / 'grey'}", recipe=recipe, run="of_the_file").done()
    check("patch_embed" not in same, same)
    said = train(folder, "--procs", 2, "--set", f"train.init_from={FIXTURES / 'timm.safetensors'}", recipe=recipe,
                 run="of_its_source").done()
    check("patch_embed.proj.weight: 3 -> 1 channels, summed" in said, said)
    files, source = (losses(folder / run) for run in ("of_the_file", "of_its_source"))
    check(len(files) == 3 and all(abs(a - b) < 1e-5 for (_, a), (_, b) in zip(files, source, strict=True)), files, source)


def what_cannot_be_is_one_line(folder):
    from harness import check, tessera

    for words, expected in (
            (("x", "--image-size", 24), "[checkpoint.convert] --image-size, --patch-size, --channels, --classes and --pool have an effect only with --to-finetune"),
            (("x", "--channels", 1), "--channels, --classes and --pool have an effect only with --to-finetune; add --to-finetune"),
            (("x", "--to-finetune", "--channels", 4), "[checkpoint.convert] the model has 4 channels: expected 1 or 3 with --to tessera"),
            (("x", "--dtype", "F16"), "[checkpoint.convert] --dtype is F16: expected F32 with --to tessera, whose weights are float32"),
            (("x", "--head", "fresh"), "[checkpoint.convert] --head is fresh, which a file cannot hold: expected auto, keep or zero"),
            (("x", "--to", "jax"), "[weights.family] unknown family of weights \"jax\": expected one of timm, torchvision, hf, npz, big_vision"),
            (("x", "--to", "hf", "--max-shard-size", "5GiB"),
             "[weights.shard_size] the size of a file is \"5GiB\": expected 5GB, 500MB or a number of bytes"),
            (("x", "--to", "timm", "--max-shard-size", "5GB"),
             "[checkpoint.convert] --max-shard-size has no effect with --to timm: expected --to hf"),
            (("x", "--to-finetune", "--pool", "map"), "[checkpoint.convert] --pool is \"map\": expected gap or cls")):
        out = refused(tessera("checkpoint", "convert", FIXTURES / "timm.safetensors", *words, *HEADS, folder=folder))
        check(expected in out and not (folder / "x").exists(), words, out)
    out = refused(tessera("checkpoint", "convert", FIXTURES / "dinov2.pth", "x", *HEADS, folder=folder))
    check("[checkpoint.convert] the weights have no head; give --to-finetune --classes N" in out, out)


def foreign_folders_give_their_probabilities(folder):
    """Pixels and network are those of timm and transformers, from what their configurations say alone."""
    from harness import check, tessera

    expected = json.loads((FIXTURES / "expected.json").read_text())
    for name, first_class in (("timm_hub", "apple"), ("hf_deit", "0")):
        out = tessera("predict", FIXTURES / name, FIXTURES / name / "wide.png", "--json", "--set", "precision.compute=fp32",
                      folder=folder, stderr=subprocess.DEVNULL).done()
        found = {each["label"]: each for each in json.loads(out)[0]["predictions"]}
        largest = max(abs(found[label]["probability"] - p) for label, p in enumerate(expected[name]["probabilities"]))
        print(f"  {name}: largest difference of probabilities {largest:.2e}", flush=True)
        check(largest < 1e-5 and found[0]["class"] == first_class, name, found, expected[name])
    names = folder / "names.txt"
    names.write_text("apple\npear\nplum\nfig\nquince\n")
    out = refused(tessera("predict", FIXTURES / "timm_hub", FIXTURES / "timm_hub/wide.png", "--set", f"data.classes={names}",
                          folder=folder))
    check("label 3 is 'quince' in the checkpoint and 'fig' in the data" in out, out)


def classes_of_kept_heads_and_teachers_agree(folder):
    """The same name under another label would train or teach the wrong class without a word."""
    from files import png
    from harness import check, tessera, train

    def pictures(place, names):
        for split in ("train", "val"):
            for name in names:
                (folder / place / split / name).mkdir(parents=True)
                for i in range(3):
                    (folder / place / split / name / f"{i}.png").write_bytes(png(20, lambda x, y, i=i: (x * y + i * 40) % 256))

    pictures("three", ("cat", "cow", "dog"))
    pictures("moved", ("ant", "cat", "cow"))  # cat and cow have other labels
    pictures("other", ("cat", "cow", "pig"))
    pictures("two", ("cat", "cow"))
    recipe = folder / "classes.toml"
    recipe.write_text(FINETUNE)
    data = lambda place: ("--set", f"data.source=folder:{folder / place}", "--set", "train.batch=3")
    train(folder, *data("three"), recipe=recipe, run="known").done()
    for setting in ("train.init_from", "distill.teacher"):
        use = ("--set", f"{setting}={folder / 'known'}")
        out = refused(train(folder, *data("moved"), *use, recipe=recipe, run=f"moved_{setting}"))
        check(f"{setting}: {folder / 'known'} has other classes than the data: label 1 is 'cow' in the checkpoint and 'cat' in the data, "
              "which is label 0 there" in out, out)
        out = train(folder, *data("other"), *use, recipe=recipe, run=f"other_{setting}").done()
        check(f"{setting}: " in out and "label 2 is 'dog' in the checkpoint and 'pig' in the data" in out, out)
        out = train(folder, *data("three"), *use, recipe=recipe, run=f"same_{setting}").done()
        check("other classes" not in out and "does not name" not in out, out)
    fresh = ("--set", f"train.init_from={folder / 'known'}", "--set", "train.init_head=fresh")
    train(folder, *data("moved"), *fresh, recipe=recipe, run="fresh").done()  # a replaced head has no classes
    out = tessera("eval", folder / "known", *data("two")[:2], folder=folder).done()
    check("has 2 classes and the model 3 outputs: 1 is of no class" in out, out)


def what_a_file_does_not_hold_is_said(folder):
    """The settings in the warning give the figures of the run back; files that hold all have no warning."""
    import shlex

    from files import png
    from harness import check, settings, tessera, train

    for split in ("train", "val"):
        for name in ("cat", "cow", "dog"):
            (folder / "wide" / split / name).mkdir(parents=True)
            for i in range(3):
                (folder / "wide" / split / name / f"{i}.png").write_bytes(
                    png(30, lambda x, y, i=i, name=name: (x * y + i * 40 + 9 * len(name) * ord(name[1]) * x) % 256))
    recipe = folder / "pixels.toml"
    recipe.write_text(FINETUNE)
    data = settings(data__source=f"folder:{folder / 'wide'}")
    train(folder, *data, *settings(train__batch=3, data__mean="[0.1, 0.2, 0.3]", data__std="[0.3, 0.2, 0.1]", data__eval_crop="center",
                                   data__eval_crop_ratio=0.7, data__interpolation="bicubic", optimizer__lr=0.01), recipe=recipe,
          run="pixels").done()

    def loss(path, *words):
        out = tessera("eval", path, "--json", *data, *words, *settings(precision__compute="fp32"), folder=folder,
                      stderr=subprocess.DEVNULL).done()
        return json.loads(out)["loss"]

    expected = loss("pixels")
    for family, output in (("npz", "p.npz"), ("big_vision", "b.npz"), ("timm", "p.safetensors"), ("torchvision", "t.safetensors"),
                           ("hf", "p_hf")):
        out = tessera("checkpoint", "convert", "pixels", output, "--to", family, "--no-check", folder=folder).done()
        said = f"warning: {output} does not hold all that an evaluation needs: evaluate it with "
        if not output.endswith(".npz"):
            check("warning" not in out and abs(loss(output) - expected) < 1e-5, output, out)
            continue
        words = shlex.split(out[out.index(said) + len(said):].split("\n")[0])
        keys = {word.split("=")[0] for word in words if word != "--set"}
        check(keys == {"data.mean", "data.std", "data.interpolation", "data.eval_crop", "data.eval_crop_ratio"}, words)
        check(f"warning: {output} does not hold the class names: tessera predict takes them with --set data.classes=FILE" in out, out)
        check(abs(loss(output) - expected) > 1e-4, "the test's pixels make no difference", expected)
        check(abs(loss(output, *words) - expected) < 1e-5, loss(output, *words), expected)


def weights_go_out_and_in():
    from harness import scratch

    with scratch() as folder:
        what_cannot_be_is_one_line(folder)
        a_fine_tuning_can_begin_with_them(folder)
        grey_pictures_in_larger_patches(folder)
        foreign_folders_give_their_probabilities(folder)
        classes_of_kept_heads_and_teachers_agree(folder)
        a_check_without_logits_compares_features(folder)
        what_a_file_does_not_hold_is_said(folder)
        others_give_the_same_logits(folder)  # last: without the other programs the whole test counts as skipped
        features_are_those_of_the_others(folder)


def shown(pictures):
    """The pictures as a tensor in [-1, 1], in the order of their classes."""
    import numpy as np
    import PIL.Image
    import torch

    files = sorted(pathlib.Path(pictures).glob("val/*/*.png"))
    pixels = np.stack([np.asarray(PIL.Image.open(file).convert("RGB"), np.float32) for file in files])
    return torch.from_numpy(pixels / 127.5 - 1).permute(0, 3, 1, 2)


def write_backbones(place, pictures):
    """Writes models to the folder and prints the features that their packages compute of the pictures."""
    sys.path.insert(0, str(FIXTURES.parent))
    import make_fixtures as fixtures
    import safetensors.torch
    import torch
    import transformers

    s, place = fixtures.SIZES, pathlib.Path(place)
    images = shown(pictures)
    sizes = dict(img_size=s["image"], patch_size=s["patch"], embed_dim=s["width"], depth=s["depth"], num_heads=s["heads"],
                 mlp_ratio=s["mlp"] / s["width"])
    config = dict(hidden_size=s["width"], num_hidden_layers=s["depth"], num_attention_heads=s["heads"],
                  intermediate_size=s["mlp"], image_size=s["image"], patch_size=s["patch"])
    distilled = fixtures.timm_deit.VisionTransformerDistilled
    found = {}
    for name, model in (("vit.safetensors", fixtures.timm_model(num_classes=0)),
                        ("deit_distilled.safetensors", distilled(num_classes=5, **sizes)),
                        ("deit_distilled_backbone.safetensors", distilled(num_classes=0, **sizes))):
        fixtures.randomise(model, 31)
        safetensors.torch.save_file(model.state_dict(), place / name)
        with torch.no_grad():
            found[name] = model.forward_head(model.forward_features(images), pre_logits=True)
    for name, model in (("hf_vit", transformers.ViTModel(transformers.ViTConfig(**config))),
                        ("hf_deit", transformers.DeiTModel(transformers.DeiTConfig(**config)))):
        fixtures.randomise(model, 32).save_pretrained(place / name)
        with torch.no_grad():
            found[name] = model(images).last_hidden_state[:, 0]  # what their ForImageClassification reads
    print(json.dumps({name: values.flatten().tolist() for name, values in found.items()}))


def read_features(path):
    import os

    from safetensors.torch import load_file

    found = load_file(path)
    text, ends = found["names"].numpy().tobytes(), found["name_offsets"].tolist()
    names = [os.fsdecode(text[begin:end]) for begin, end in zip(ends, ends[1:])]
    print(json.dumps({"names": names, "labels": found["labels"].tolist(), "dtype": str(found["features"].dtype),
                      "features": found["features"].flatten().tolist()}))


def logits(family, path, pictures, ours):
    """Prints what the package computes of the formula's images and of the pictures, and what Tessera computed of these."""
    sys.path.insert(0, str(FIXTURES.parent))
    import make_fixtures as fixtures
    import safetensors.torch
    import torch

    s = fixtures.SIZES
    if family == "torchvision":
        model = fixtures.torchvision_vit.VisionTransformer(s["image"], s["patch"], s["depth"], s["heads"], s["width"],
                                                           s["mlp"], num_classes=s["classes"])
        model.load_state_dict(safetensors.torch.load_file(path), strict=True)
    elif family == "hf":
        import transformers

        model, loading = transformers.ViTForImageClassification.from_pretrained(path, output_loading_info=True)
        assert not any(loading.values()), loading  # nothing missing, unexpected or of another shape
        transformers.AutoImageProcessor.from_pretrained(path)
    else:
        model = fixtures.timm_model()
        if family == "timm":
            model.load_state_dict(safetensors.torch.load_file(path), strict=True)
        else:
            model = fixtures.timm_model(no_embed_class=family == "big_vision")
            fixtures.timm_vit._load_weights(model, path)

    def computed(images):
        out = model.eval()(images)
        return getattr(out, "logits", out).flatten().tolist()

    with torch.no_grad():
        print(json.dumps({"formula": computed(fixtures.images()), "pictures": computed(shown(pictures)),
                          "tessera": safetensors.torch.load_file(ours)["head"].flatten().tolist()}))


if __name__ == "__main__":
    if sys.argv[1:2] in (["logits"], ["write_backbones"], ["read_features"]):
        globals()[sys.argv[1]](*sys.argv[2:])
    else:
        from harness import main

        main(weights_go_out_and_in)
