# SPDX-License-Identifier: Apache-2.0
"""Every recipe of recipes/: planned as it is, and three steps of it with a narrow model, small pictures and made-up data."""
from harness import SOURCE, check, losses, main, scratch, settings, tessera, train

# What makes a recipe small, whatever it is: a narrow model, small pictures, three steps of a small batch.
TINY = dict(train__steps=3, train__batch=8, train__log_every=1, schedule__warmup_steps=1, schedule__cooldown_steps=0,
            schedule__min_lr=0, train__eval_every_epochs=0, checkpoint__every_epochs=0, run__threads=1, data__repeats=1,
            precision__compute="fp32")
TINY_MODELS = {
    "vit": dict(model__image_size=32, model__patch_size=16, model__width=32, model__depth=2, model__heads=2, model__classes=10),
    "resnet": dict(model__image_size=32, model__block="basic", model__blocks="[1, 1]", model__base_width=8,
                   model__classes=10),
    "resmlp": dict(model__image_size=32, model__patch_size=16, model__width=32, model__depth=2, model__classes=10),
}


def every_shipped_recipe_is_planned_and_trains():
    with scratch() as folder:
        train(folder, *settings(model__image_size=32, model__patch_size=16, train__steps=1), run="teacher").done()
        env = {"WEIGHTS": "", "TEACHER": str(folder / "teacher"), "MNIST": "", "CLOTHING160": "", "IMAGENET": ""}
        # The memory of a dry run is that of the student as the recipe has it, and of a teacher that fits it.
        train(folder, *settings(model__image_size=224, model__patch_size=112, model__classes=1000, train__steps=1),
              run="teacher224").done()
        for recipe in sorted((SOURCE / "recipes").glob("*.toml")):
            name = recipe.stem
            # With as many made-up images as ImageNet-1k has, where it wants that.
            data = [] if "fake:1281167" in recipe.read_text() else ["--fake-data"]
            # The layout of a large model wants its ranks, and none of it is left for one.
            has_layout = "[parallel]" in recipe.read_text()
            ranks = ["--procs", 2048] if has_layout else []
            out = tessera("train", recipe, "--dry-run", "--rate", 1000, *ranks, *data, folder=folder,
                          env={**env, "TEACHER": str(folder / "teacher224")}).done()
            for fact in ("parameters:", "steps:", "predicted memory per rank:", "forward GFLOP per image:",
                         "training at 1000 images/s:"):
                check(fact in out, name, out)
            family = "resnet" if "resnet" in name else "resmlp" if "resmlp" in name else "vit"
            small = settings(**{**TINY, **TINY_MODELS[family], "data__crop_from": 0})
            if "step_epochs" in recipe.read_text():
                small += settings(schedule__step_steps=2)
            if has_layout:
                small += settings(parallel__pipeline=1, parallel__tensor=1, parallel__micro_batches=0)
            train(folder, "--fake-data", *small, recipe=recipe, run=name, env=env).done(120)
            found = losses(folder / name)
            check([step for step, _ in found] == [1, 2, 3] and all(0 < loss < 100 for _, loss in found), name, found)
            print(f"  {name}: {[round(loss, 3) for _, loss in found]}", flush=True)


if __name__ == "__main__":
    main(every_shipped_recipe_is_planned_and_trains)
