# SPDX-License-Identifier: Apache-2.0
"""One set of images in every form: the same training, and the same curve when it goes on amid an epoch on other ranks."""
import re
import shutil

from files import make_cifar_folder, make_image_folder, shared_data
from harness import check, check_same_losses, checkpoints, losses, main, scratch, settings, tessera, train

# 10 steps an epoch of 120 images, 8 of 100: step 3 lies amid the first.
KEYS = settings(train__batch=12, train__steps=6, checkpoint__every_steps=3, schedule__warmup_steps=2,
                data__auto_augment="rand-m9-mstd0.5-inc1", train__mixup=0.5)
LIMIT = 180.0
FORMS = {"zip": (), "wds": ("--max-samples", 50), "tfrecord": ("--max-samples", 50, "--name", "clothes"), "folder": ()}


def photos(folder):
    """120 photos for training and 40 to judge by, in ten classes; drawn ones in two where there are no photos."""
    real = shared_data("clothing160")
    if real is None:
        print("no clothing160 beside the source tree: drawn images stand in")
        return make_image_folder(folder, 60)
    for split, count in (("train", 12), ("validation", 4)):
        for kind in sorted((real / split).iterdir()):
            place = folder / split.replace("validation", "val") / kind.name
            place.mkdir(parents=True)
            for path in sorted(kind.iterdir())[:count]:
                shutil.copy(path, place)
    return folder


def whole_and_resumed(folder, source, name, ranks):
    """The losses of a run on 2 ranks; on `ranks` of them it goes on from its third step to the same ones."""
    keys = [*KEYS, *settings(data__source=source, data__index_dir=folder / "index")]
    text = train(folder, "--procs", 2, *keys, run=name).done(LIMIT)
    check("120 training and " in text or "100 training and " in text, text)
    check(len(re.findall(r"^step \d+/6 .* data \d+ % ", text, re.M)) == 6, "what was waited for data, in every line", text)
    expected = losses(folder / name)
    check(len(expected) == 6, expected)
    third = checkpoints(folder / name)[0]
    check(third.name.endswith("3"), third)
    train(folder, "--procs", ranks, "--resume", third, *keys, run=f"{name}-on").done(LIMIT)
    check_same_losses(losses(folder / f"{name}-on"), expected[3:], 2e-5)
    return expected


def packed_forms_train_alike():
    with scratch() as folder:
        source = f"folder:{photos(folder / 'photos')}"
        expected = whole_and_resumed(folder, source, "run", 1)
        for ranks, (form, words) in zip((3, 1, 3, 1), FORMS.items()):
            tessera("data", "pack", source, folder / form, "--to", form, *words, folder=folder).done(LIMIT)
            found = whole_and_resumed(folder, f"{form}:{folder / form}", f"run-{form}", ranks)
            check_same_losses(found, expected)


def cifar_trains():
    with scratch() as folder:
        whole_and_resumed(folder, f"cifar:{make_cifar_folder(folder / 'cifar')}", "cifar-run", 3)


main(packed_forms_train_alike, cifar_trains)
