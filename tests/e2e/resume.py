#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a resumed run says of its data, where in them it goes on, and which checkpoint it takes when the newest is damaged.

Also: two runs never save into one checkpoint.dir, and what killed processes left is cleared.
"""
import json
import re
import shutil
import signal

from harness import check, checkpoints, main, scratch, send, settings, summary, tessera, tiny_recipe, train

COLOURS = (b"\x00\x00\x00", b"\xff\xff\xff")


def pixels(path, count, first=0):
    """Images of 16 x 16 pixels in two class folders; PNG without a library."""
    import struct
    import zlib
    for name, colour in zip(("dark", "light"), COLOURS):
        (path / name).mkdir(parents=True, exist_ok=True)
        for i in range(first, first + count):
            rows = b"".join(b"\x00" + (colour[:2] + bytes([i])) * 16 for _ in range(16))
            chunks = ((b"IHDR", struct.pack(">IIBBBBB", 16, 16, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
            data = b"".join(struct.pack(">I", len(c)) + t + c + struct.pack(">I", zlib.crc32(t + c)) for t, c in chunks)
            (path / name / f"{i:03}.png").write_bytes(b"\x89PNG\r\n\x1a\n" + data)


def says_what_differs_in_the_data():
    """15 images where there were 5 a class; other files of equal number; a class less."""
    with scratch() as folder:
        for split in ("train", "val"):
            pixels(folder / "data" / split, 8)
        keys = settings(data__source=f"folder:{folder}/data", model__classes=2, train__batch=4, train__steps=4,
                        checkpoint__every_steps=2, train__eval_every_epochs=0)
        train(folder, *keys).done()

        def resumed(*more):
            shutil.rmtree(folder / "again", ignore_errors=True)
            shutil.copytree(folder / "run", folder / "again")
            return train(folder, *keys, "--resume", "2", *more, run="again")

        check("differs from the saved run" not in resumed().done(), "nothing differs")
        pixels(folder / "data/train", 2, first=8)
        text = resumed().done()
        check("differs from the saved run: 16 -> 20 training images: order, epoch and schedule are those of the new number" in text, text)
        text = resumed("--dry-run").done()
        check("differs from the saved run: 16 -> 20 training images: " in text, text)
        for name in ("dark", "light"):
            for i in (8, 9):
                (folder / f"data/train/{name}/{i:03}.png").unlink()
        (folder / "data/train/dark/000.png").rename(folder / "data/train/dark/100.png")
        (folder / "data/val/dark/000.png").unlink()
        text = resumed("--procs", 2).done()
        check("differs from the saved run: names, not labels, of the 16 training images: " in text, text)
        check("differs from the saved run: 16 -> 15 validation images: " in text, text)
        for split in ("train", "val"):
            (folder / "data" / split / "dark").rename(folder / "data" / split / "zebra")
        run = resumed()
        check(run.wait() == 2 and re.search(r"the data differ from the saved run: label 0 is 'dark' in the checkpoint and 'light' in the data, which is label 1 there; ", run.text()), run.tail())


def fewer_images_than_were_trained_on():
    """The hint for a run that is longer than its length: it names the cause, and no --set that was not given."""
    with scratch() as folder:
        recipe = tiny_recipe(folder)
        recipe.write_text(recipe.read_text().replace("steps = 6\n", "epochs = 2\n"))
        keys = settings(train__eval_every_epochs=0)
        train(folder, *keys, recipe=recipe).done()
        run = train(folder, *keys, *settings(data__source="fake:128"), "--resume", "latest", recipe=recipe)
        check(run.wait() == 2, run.tail())
        check(re.search(r"error: \[train.resume\] train.epochs = 2 is \d+ steps, but the checkpoint is at step 16, as the training data "
                        r"have 128 images instead of 256: expected more than 16 steps; restore the images, or set train.epochs to at "
                        r"least \d+\n", run.text()), run.tail())


def rows_of(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row for row in rows if row["kind"] == "step"}


def a_new_batch_keeps_its_place_in_the_epoch():
    """480 images, 4 epochs: after 10 steps of 24, 35 steps of 48 are left; each image is seen 4 times."""
    with scratch() as folder:
        recipe = tiny_recipe(folder)
        recipe.write_text(recipe.read_text().replace("steps = 6\n", "epochs = 4\n"))
        keys = settings(data__source="fake:480", train__eval_every_epochs=0, checkpoint__every_steps=10, checkpoint__keep=50)
        train(folder, *keys, *settings(train__batch=24), recipe=recipe).done()
        before = rows_of(folder / "run")
        text = train(folder, *keys, *settings(train__batch=48), "--resume", "10", recipe=recipe).done()
        check("differs from the saved run: batch 24 -> 48: " in text, text)
        check("240 images of epoch 0 are done (counted from 0); the run ends at step 45" in text, text)
        check(summary(folder / "run")["steps"] == 45, summary(folder / "run"))
        after = rows_of(folder / "run")
        check(abs(after[11]["epoch"] - 0.6) < 1e-9 and after[45]["epoch"] == 4, after[11], after[45])
        for step in range(11, 46):
            rate = before[11 + 2 * (step - 11)]["learning_rate"]
            check(abs(after[step]["learning_rate"] - rate) < 1e-9, step, after[step]["learning_rate"], rate)
        # Back to 24 at step 20, amid the second epoch: 240 and 10 x 48 images are done, 50 steps of 24 are left.
        text = train(folder, *keys, *settings(train__batch=24), "--resume", "20", recipe=recipe).done()
        check("240 images of epoch 1 are done (counted from 0); the run ends at step 70" in text, text)


def a_damaged_checkpoint_is_passed_over():
    """The newest whole one is taken by train, eval, predict and export alike; checkpoint.on_damage = "fail" stops."""
    with scratch() as folder:
        keys = settings(train__steps=8, checkpoint__every_steps=2, checkpoint__keep=10)
        train(folder, "--procs", 2, *keys).done()
        saved = checkpoints(folder / "run")
        newest, older = saved[-1], saved[-2]
        (folder / "run/checkpoints/best.json").write_text("{")
        shard = next(newest.glob("shard-00001*"))
        content = bytearray(shard.read_bytes())
        content[-100] ^= 1
        shard.write_bytes(content)
        pixels(folder / "photos", 1)
        told = rf"{newest.name}: .*has the checksum .*{older.name} is taken instead"
        for words, named in ((("eval", "run"), f"evaluating .*{older.name}"),
                             (("predict", "run", "photos/dark/000.png"), f"predicting with .*{older.name}"),
                             (("checkpoint", "export", "run", "out.safetensors"), f"wrote out.safetensors from .*{older.name}"),
                             (("checkpoint", "consolidate", "run", "-o", "out2.safetensors"), f"from .*{older.name}")):
            text = tessera(*words, folder=folder).done()
            check(re.search(told, text) and re.search(named, text), words, text)
        run = tessera("eval", "run", "--set", "checkpoint.on_damage=fail", folder=folder)
        check(run.wait() == 2 and 'set checkpoint.on_damage = "fall_back"' in run.text(), run.tail())
        for procs in ((), ("--procs", 2)):
            run = train(folder, *procs, *keys, "--resume", *settings(checkpoint__on_damage="fail"))
            check(run.wait() == 2 and "has the checksum" in run.text(), run.tail())
        for procs in ((), ("--procs", 2)):
            shutil.copytree(folder / "run", folder / f"again{len(procs)}")
            text = train(folder, *procs, *keys, "--resume", run=f"again{len(procs)}").done()
            check(re.search(told, text) and f"{older.name} at step 6" in text, text)
            check("best.json" in text and (folder / f"again{len(procs)}/checkpoints/abandoned_best.json").exists(), text)
            check((folder / f"again{len(procs)}/checkpoints/abandoned_{newest.name}").exists(), "the damaged one is kept")


def one_checkpoint_dir_is_of_one_run_at_a_time():
    with scratch() as folder:
        train(folder, *settings(train__steps=2), run="c").done()
        keys = settings(train__steps=100000, train__eval_every_epochs=0, checkpoint__dir=folder / "ck")
        for procs in ((), ("--procs", 2)):
            with train(folder, *keys, *procs, run="a") as first:
                first.wait_for_step(1, folder / "a")
                second = train(folder, *keys, *procs, run="b")
                check(second.wait(60) == 2, second.tail())
                check(re.search(rf"checkpoint.dir {folder}/ck is in use by the run in {folder}/a \(process \d+ on host .+\): "
                                "expected a folder that no other run saves into", second.text()), second.tail())
                check(not (folder / "b").exists(), "the refused run leaves nothing")
                run = tessera("checkpoint", "reshard", "c", "-o", "ck", folder=folder)
                check(run.wait() == 2 and "ck is in use: the run that saves into it holds " in run.text(), run.tail())
            shutil.rmtree(folder / "a")


def a_checkpoint_dir_that_another_run_took_over():
    """Run a ends before its first save, and b saves into the same folder: b's checkpoints are not those of a."""
    with scratch() as folder:
        keys = settings(train__eval_every_epochs=0, checkpoint__dir=folder / "ck")
        with train(folder, *keys, *settings(train__steps=1000000), run="a") as first:
            first.wait_for_step(1, folder / "a")
            send(first.pid, signal.SIGKILL)
            first.wait(30)
        train(folder, *keys, *settings(train__steps=8), run="b").done()
        pixels(folder / "photos", 1)
        told = f"step_00000008 was saved by the run in {folder}/b, not by that in "
        for words in (("eval", "a"), ("predict", "a", "photos/dark/000.png"), ("checkpoint", "export", "a", "out.safetensors"),
                      ("checkpoint", "inspect", "a"), ("train", "--resume", "a"), ("train", "--resume", "a", "--dry-run"),
                      ("train", "--resume", "a", "--procs", 2)):
            run = tessera(*words, folder=folder)
            check(run.wait(60) == 2 and told in run.text(), words, run.tail())
        check("evaluating" in tessera("eval", "b", folder=folder).done(), "b's are b's")
        (folder / "b").rename(folder / "moved")
        check("resumed from" in tessera("train", "--resume", "moved", *settings(train__steps=12), folder=folder).done(), "a moved run is the same")


def leftovers_go_with_the_next_run():
    with scratch() as folder:
        train(folder, *settings(train__steps=2, checkpoint__every_steps=1)).done()
        half = folder / "run/checkpoints/step_00000009.tmp"
        half.mkdir()
        (half / "shard-00000-of-00001.safetensors").write_bytes(b"half")
        train(folder, "--resume", *settings(train__steps=2)).done()  # nothing is left to train or to save
        check(not half.exists(), "a killed save's folder stayed")


if __name__ == "__main__":
    main(says_what_differs_in_the_data, fewer_images_than_were_trained_on, a_new_batch_keeps_its_place_in_the_epoch,
         a_damaged_checkpoint_is_passed_over, one_checkpoint_dir_is_of_one_run_at_a_time, a_checkpoint_dir_that_another_run_took_over,
         leftovers_go_with_the_next_run)
