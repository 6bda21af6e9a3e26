# SPDX-License-Identifier: Apache-2.0
"""Trainings that begin with somebody's weights or learn from a teacher, through the program."""
import json
import pathlib
import subprocess

from files import png

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "weights/fixtures"
SMALL_VIT = dict(model__image_size=12, model__patch_size=4, model__width=16, model__depth=2, model__heads=2,
                 model__mlp_width=32, model__classes=5, model__class_token="true", model__pool="cls")


def refused(run):
    from harness import check

    code = run.wait(60)
    check(code == 2, "exit 2 was expected:", code, run.words, run.tail())
    return run.text()


def tensors_of(run_dir, folder):
    """name -> bytes of the newest checkpoint, exported."""
    from harness import checkpoints, tessera

    out = pathlib.Path(folder) / "exported.safetensors"
    out.unlink(missing_ok=True)
    tessera("checkpoint", "export", checkpoints(run_dir)[-1], out, folder=folder).done()
    return read_safetensors(out)


def read_safetensors(path):
    """name -> bytes, with the standard library alone."""
    raw = pathlib.Path(path).read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__", None)
    return {name: raw[8 + length + t["data_offsets"][0]:8 + length + t["data_offsets"][1]] for name, t in header.items()}


def files_are_evaluated_as_they_are():
    """A file of weights gives what the run that began with it, and never learned, gives."""
    from harness import check, scratch, settings, tessera, train

    with scratch() as folder:
        train(folder, *settings(**SMALL_VIT, train__steps=1, optimizer__lr=0, schedule__name="constant",
                                train__init_from=FIXTURES / "timm.safetensors")).done()
        data = settings(data__source="fake:96", train__eval_batch=16)
        found = {}
        for place in ("run", FIXTURES / "timm.safetensors"):
            out = tessera("eval", place, "--procs", 2, "--json", *data, *settings(model__heads=2),
                          *settings(data__mean="[0.5]", data__std="[0.5]", precision__compute="fp32"), folder=folder, stderr=subprocess.DEVNULL).done()
            found[place] = json.loads(out[out.index("{"):])
        run, file = found.values()
        found = {}
        for place in (FIXTURES / "hf", FIXTURES / "hf_sharded"):
            out = tessera("eval", place, "--json", *data, *settings(precision__compute="fp32"), folder=folder, stderr=subprocess.DEVNULL).done()
            found[place] = json.loads(out[out.index("{"):])["loss"]
        check(len(set(found.values())) == 1, "one model in one file and in several:", found)
        image = folder / "a.png"
        image.write_bytes(png(12, lambda x, y: 20 * x % 256))
        for place in (FIXTURES / "timm.safetensors", FIXTURES / "hf"):
            said = json.loads(tessera("predict", place, image, "--set", "model.heads=2", "--json", folder=folder, stderr=subprocess.DEVNULL).done())
            check(len(said[0]["predictions"]) == 5 and said[0]["image"] == str(image), said)
        check(run["samples"] == file["samples"] == 96 and abs(run["loss"] - file["loss"]) < 1e-6, run, file)
        check(run["top1"] == file["top1"], run, file)
        failed = refused(tessera("eval", FIXTURES / "timm.safetensors", *data, folder=folder))
        check("give it with --heads, or --set model.heads=N" in failed, failed)
        data += settings(model__heads=2)
        failed = refused(tessera("eval", FIXTURES / "timm.safetensors", "--ema", *data, folder=folder))
        check("[train.eval] --ema needs a checkpoint of Tessera, but " in failed, failed)


def weights_without_a_classifier_have_features():
    """Enough for --features, --knn and --probe; everything else says that it needs the classifier."""
    from files import make_image_folder
    from harness import check, scratch, settings, tessera

    with scratch() as folder:
        photos = make_image_folder(folder / "photos")
        data = settings(data__source=f"folder:{photos}", model__heads=2)
        backbone = FIXTURES / "dinov2.pth"
        out = tessera("eval", backbone, "--procs", 2, "--features", folder / "out.safetensors", "--knn", 5, "--probe",
                      "--output", folder / "out.json", *data, folder=folder).done()
        check("no classifier: only features are computed" in out and "; no top-1" in out and "top-1 0.00" not in out, out)
        check("head.weight" not in out, out)
        found = json.loads((folder / "out.json").read_text())
        check(found["samples"] == 80 and found["compute"] == "fp32" and not {"top1", "loss"} & found.keys(), found)
        check(found["probe_top1"] > 95 and found["knn_top1"] > 90, found)
        for command, reason in ((("eval", backbone), "which logits and top-1 need"),
                                (("eval", backbone, "--knn", 5, "--output-dir", "page"), "which --output-dir needs"),
                                (("eval", backbone, "--features", "x", "--units", "head"), "which --units head needs"),
                                (("predict", backbone, photos / "val/dark/001.png"), "[train.predict] ")):
            failed = refused(tessera(*command, *data, folder=folder))
            check(f"{backbone} (timm: DINOv2 with registers) has no classifier" in failed and reason in failed, failed)
        check(not (folder / "x").exists() and not (folder / "page").exists(), "files")
        # A classifier of other classes is in no one's way either.
        six = folder / "six"
        for number in range(6):
            (six / "val" / f"class{number}").mkdir(parents=True)
            (six / "val" / f"class{number}" / "a.png").write_bytes(png(12, lambda x, y: (x * y * number) % 256))
        other = settings(data__source=f"folder:{six}")
        failed = refused(tessera("eval", FIXTURES / "hf", *other, folder=folder))
        check("has 6 classes and the model 5 outputs: expected data of at most 5 classes" in failed, failed)
        out = tessera("eval", FIXTURES / "hf", "--features", "six.safetensors", *other, folder=folder).done()
        check("6 classes and the model 5 outputs: no top-1 is computed, only features" in out, out)
        (six / "val/class5").rename(six / "val/plum")  # label 2 of the weights, label 5 of the data
        (six / "val/class4/a.png").unlink()
        (six / "val/class4").rmdir()
        failed = refused(tessera("eval", FIXTURES / "hf", *other, folder=folder))
        check("'plum' in the data, which is label 2 there" in failed, failed)
        out = tessera("eval", FIXTURES / "hf", "--features", "five.safetensors", *other, folder=folder).done()
        check("which is label 2 there): no top-1 is computed, only features" in out, out)


def weights_or_data_without_class_names_are_told():
    from files import make_image_folder
    from harness import check, scratch, settings, tessera

    with scratch() as folder:
        photos = make_image_folder(folder / "photos", images=3)
        unnamed, named = FIXTURES / "timm.safetensors", FIXTURES / "hf"
        line = "does not name its classes"
        out = tessera("eval", unnamed, *settings(data__source=f"folder:{photos}", model__heads=2), folder=folder).done()
        check(out.count(f"{unnamed} {line}; label i is taken for class i of folder:{photos}") == 1, out)
        out = tessera("eval", named, *settings(data__source="fake:8"), folder=folder).done()
        check(out.count(f"fake:8 {line}; label i is taken for class i of {named}") == 1 and "same classes" not in out, out)
        out = tessera("eval", unnamed, *settings(data__source="fake:8", model__heads=2), folder=folder).done()
        check(line not in out, out)
        image = photos / "val/dark/001.png"
        out = tessera("predict", unnamed, image, "--set", "model.heads=2", folder=folder).done()
        check(out.count(f"{unnamed} {line}: labels are printed in their place; --set data.classes=FILE names them") == 1, out)
        (folder / "names.txt").write_text("a\nb\nc\nd\ne\n")
        for words in ((unnamed, "--set", "model.heads=2", "--set", f"data.classes={folder / 'names.txt'}"), (named,)):
            out = tessera("predict", words[0], image, *words[1:], folder=folder).done()
            check(line not in out and "warning" not in out, out)


def others_weights_arrive_unchanged():
    """With a learning rate of 0 what was loaded is what was saved, on two ranks and on one."""
    from harness import check, scratch, settings, train

    still = settings(**SMALL_VIT, train__steps=1, optimizer__lr=0, schedule__name="constant")
    with scratch() as folder:
        wanted = read_safetensors(FIXTURES / "timm.safetensors")
        for procs in (1, 2):
            out = train(folder, "--procs", procs, *still, *settings(train__init_from=FIXTURES / "timm.safetensors"),
                        run=f"of_{procs}").done()
            check("initial weights from" in out and "(timm: timm)" in out, out)
            check(tensors_of(folder / f"of_{procs}", folder) == wanted, "weights changed on their way", procs)
        # The same from that run, and at another size; only positions and head are others.
        larger = settings(model__image_size=20, model__classes=3, train__init_from=folder / "of_2")
        out = train(folder, *still, *larger, run="larger").done()
        check("pos_embed: 3 x 3 -> 5 x 5 patches, bicubic" in out and "head.bias: 5 -> 3 classes, all 0" in out, out)
        found = tensors_of(folder / "larger", folder)
        changed = {name for name in wanted if found[name] != wanted[name]}
        check(changed == {"pos_embed", "head.weight", "head.bias"}, changed)
        failed = refused(train(folder, *still, *settings(train__init_from=folder / "of_2", model__depth=3), run="deeper"))
        check("the model's depth is 3, but that of the weights is 2" in failed, failed)
        failed = refused(train(folder, *settings(train__init_from=folder / "none.npz"), run="none"))
        check("none.npz" in failed and failed.count("error:") == 1, failed)


def a_resumed_run_does_not_begin_again():
    from harness import check, check_same_losses, checkpoints, losses, scratch, settings, train

    with scratch() as folder:
        begin = settings(**SMALL_VIT, train__init_from=folder / "start.safetensors", checkpoint__every_steps=3)
        weights = folder / "start.safetensors"
        weights.write_bytes((FIXTURES / "timm.safetensors").read_bytes())
        train(folder, *begin, run="whole").done()
        whole = losses(folder / "whole")
        check(len(whole) == 6, whole)
        weights.unlink()  # whoever asks for it again fails
        out = train(folder, *begin, "--resume", checkpoints(folder / "whole")[0], run="rest").done()
        check("initial weights" not in out and "resumed from" in out, out)
        check_same_losses(losses(folder / "rest"), whole[3:])


def a_linear_probe_changes_the_head_alone():
    from harness import check, scratch, settings, train

    with scratch() as folder:
        train(folder, run="pretrained").done()
        before = tensors_of(folder / "pretrained", folder)
        probe = settings(train__init_from=folder / "pretrained", train__init_head="zero", train__steps=4)
        train(folder, "--procs", 2, *probe, "--set", 'optimizer.groups=["[!h]*: freeze"]', run="probe").done()
        after = tensors_of(folder / "probe", folder)
        check({name for name in before if after[name] != before[name]} == {"head.weight", "head.bias"}, "others changed")


def a_student_learns_from_a_teacher():
    from harness import check, checkpoints, losses, scratch, settings, summary, train

    with scratch() as folder:
        train(folder, run="teacher").done()
        learn = settings(distill__teacher=folder / "teacher", distill__temperature=2, distill__alpha=0.7,
                         checkpoint__every_steps=3)
        for procs in (1, 2):
            out = train(folder, "--procs", procs, *learn, run=f"student_{procs}").done()
            check("teacher: ViT, width 32" in out, out)
        one, two = (losses(folder / f"student_{procs}") for procs in (1, 2))
        check(all(abs(a - b) < 1e-4 for (_, a), (_, b) in zip(one, two, strict=True)), one, two)
        train(folder, *learn, "--resume", checkpoints(folder / "student_1")[0], run="rest").done()
        check(losses(folder / "rest") == one[3:], losses(folder / "rest"), one)
        check(summary(folder / "student_1")["val_samples"] > 0, "evaluated")
        token = settings(model__class_token="true", model__pool="cls", model__distillation_token="true")
        train(folder, *learn, *token, run="token").done()
        failed = refused(train(folder, *learn, *settings(model__classes=3), run="fewer"))
        check("[train.teacher] the teacher " in failed and " classes: expected 3, as its student" in failed, failed)


def a_tensor_name_of_any_length_is_read():
    """Names are matched by patterns; one of a megabyte must not exhaust the stack."""
    from harness import check, scratch, settings, tessera, train

    with scratch() as folder:
        train(folder).done()
        tessera("checkpoint", "export", "run", "weights.safetensors", folder=folder).done()
        raw = (folder / "weights.safetensors").read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header, data = json.loads(raw[8:8 + length]), raw[8 + length:]
        del header["__metadata__"]
        header["blocks.0.1." + "a" * 1_000_000] = {"dtype": "F32", "shape": [0], "data_offsets": [len(data), len(data)]}
        text = json.dumps(header).encode()
        (folder / "long.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
        run = tessera("eval", "long.safetensors", *settings(model__heads=2, data__source="fake:64"), folder=folder)
        check(run.wait(60) in (0, 2), "a result or a refusal was expected:", run.process.returncode)


if __name__ == "__main__":
    from harness import main

    main(files_are_evaluated_as_they_are, weights_without_a_classifier_have_features,
         weights_or_data_without_class_names_are_told, others_weights_arrive_unchanged, a_resumed_run_does_not_begin_again, a_linear_probe_changes_the_head_alone,
         a_student_learns_from_a_teacher, a_tensor_name_of_any_length_is_read)
