# SPDX-License-Identifier: Apache-2.0
"""Every command that a page of the documentation shows runs: verbatim but for less data and fewer steps.

The ```sh blocks of a page are run in order in one folder, through bash, with `recipes` beside them and `tessera` on the
path. A command that cannot run here is in LEFT_OUT with the reason; one that is in there in vain is an error.
"""
import os
import re

from files import JPEG, make_idx_folder, make_image_folder, shared_data
from harness import PROGRAM, SOURCE, Run, check, main, scratch

# What makes any training short. train.epochs of a command becomes train.steps; both at once are refused.
BATCH = "--set train.batch=16"
SMALL = "--set schedule.warmup_steps=1 --set schedule.min_lr=0 --set run.threads=1 --set run.statistics_every=2"
EPOCHS = re.compile(r"--set train\.epochs=\d+")
LEFT_OUT = {
    "./dev ": "e2e.quickstart and the tests themselves",
    "run.wandb=": "wants Weights & Biases' package; e2e.wandb has it",
    "torchrun ": "e2e.launchers",
    "srun ": "e2e.launchers",
    "mpirun ": "e2e.launchers",
    "tessera eval vit.safetensors": "wants ImageNet; e2e.finetune evaluates files",
    "tessera eval dinov2.pth": "wants DINOv2's weights; e2e.finetune computes features of such files",
    "tessera predict vit.safetensors": "e2e.finetune reads such files",
}
# Data and weights that nobody has: only planned, and with made-up images of that number. Fewer measurements.
REPLACED = {"IMAGENET=folder:/data/imagenet": "IMAGENET=fake:1281167",
            "idx:/usr/share/datasets/fashion-mnist": "idx:$TESSERA_FASHION_MNIST",
            "--rounds 15": "--rounds 2",
            "mae_finetune_b16.toml --dry-run": "mae_finetune_b16.toml --set train.init_from= --dry-run"}


def blocks_of(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (SOURCE / page).read_text(), re.MULTILINE | re.DOTALL)


def commands_of(page):
    """The lines of the page's ```sh blocks, continued ones joined, without comments."""
    found = []
    for block in blocks_of(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            line = re.sub(r"\s+#.*$", "", line).strip()
            if line and not line.startswith("#"):
                found.append(line)
    return found


def shortened(command):
    for words, others in REPLACED.items():
        command = command.replace(words, others)
    if "tessera train" not in command or "--dry-run" in command:
        return command
    steps = f"--set train.steps={12 if '--trace 10:12' in command else 3}"
    command = EPOCHS.sub(steps, command)
    words = [command, SMALL]
    if "four_ranks" not in command:  # its plans are for the recipe's batch
        words.append(BATCH)
    if steps not in command and "--trial-steps" not in command:
        words.append(steps)
    return " ".join(words)


def run(command, folder):
    environment = {"PATH": f"{folder}/bin:{os.environ['PATH']}", "TESSERA_FASHION_MNIST": f"{folder}/fashion",
                   "CLOTHING160": f"{folder}/clothing160"}
    with Run(["bash", "-euc", command], folder, environment) as started:
        return started.done(300)


def prepare(folder):
    (folder / "bin").mkdir()
    (folder / "bin/tessera").symlink_to(PROGRAM)
    (folder / "recipes").symlink_to(SOURCE / "recipes")
    make_idx_folder(folder / "fashion", images=256, side=28)
    photos = shared_data("clothing160")
    if photos:
        (folder / "clothing160").symlink_to(photos)
    else:
        print("  no clothing160 beside the source tree: drawn images stand in", flush=True)
        make_clothes(folder / "clothing160")


def make_clothes(folder):
    """Ten classes of a few pictures in the folders of clothing160."""
    made = make_image_folder(folder.with_name("drawn"), images=8)
    for theirs, ours in (("train", "train"), ("val", "validation"), ("val", "test")):
        for label in range(10):
            place = folder / ours / f"class{label}"
            place.mkdir(parents=True)
            for picture in (made / theirs / ("dark" if label % 2 else "light")).iterdir():
                (place / picture.name).write_bytes(picture.read_bytes())


def teaches(page, *before, left_out=()):
    """Runs the page's commands after those of `before`, which stand for what a reader has done already."""
    used = set()
    with scratch() as folder:
        prepare(folder)
        for command in before:
            run(command, folder)
        commands = commands_of(page)
        check(any("tessera " in command for command in commands), "no command in", page)
        for command in commands:
            reason = next((word for word in LEFT_OUT if word in command), None)
            if reason:
                used.add(reason)
                print(f"  left out ({LEFT_OUT[reason]}): {command}", flush=True)
                continue
            run(shortened(command), folder)
            print(f"  ran: {command}", flush=True)
    check(used == set(left_out), page, "leaves out", used)


def recipes_page():
    teaches("docs/recipes.md", "cp recipes/quickstart.toml recipe.toml")


def finetune_page():
    teaches("docs/finetune.md")


def metrics_page():
    quickstart = shortened("tessera train recipes/quickstart.toml")
    teaches("docs/metrics.md", quickstart, quickstart, "cp runs/quickstart/metrics.csv curve.csv", left_out=["run.wandb="])


def weights_page():
    model = ('name = "small"\nmodel = {{ image_size = {}, patch_size = 4, width = 16, depth = 2, heads = 2, mlp_width = 32, '
             'classes = {} }}\ndata = {{ source = "fake:64" }}\ntrain = {{ batch = 16, steps = 3 }}')
    teaches("docs/weights.md", f"cat > vit.toml <<'END'\n{model.format(12, 5)}\nEND",
            f"cat > finetune.toml <<'END'\n{model.format(20, 3)}\nEND", shortened("tessera train vit.toml"),
            "tessera checkpoint export runs/small vit.safetensors",
            # (features of DINOv2's own weights: tests/e2e/finetune.py)
            left_out=["tessera eval vit.safetensors", "tessera predict vit.safetensors", "tessera eval dinov2.pth"])


def parallel_page():
    teaches("docs/parallel.md")


def pipelines_page():
    teaches("docs/pipelines.md", "cp recipes/quickstart.toml recipe.toml")


def compare_layouts_page():
    teaches("docs/compare_layouts.md", shortened("tessera train recipes/quickstart.toml --procs 2"))


def search_tutorial_page():
    teaches("docs/search_tutorial.md")


def readme():
    toml = next(text for text in blocks_of("README.md", "toml") if 'name = "flowers"' in text)
    with_data = "mkdir data && cp -r {} data/flowers && cp {} photo.jpg && cat > flowers.toml <<'END'\n{}END"
    with scratch() as elsewhere:
        flowers = elsewhere / "flowers"
        make_clothes(flowers)
        (flowers / "validation").rename(flowers / "val")
        (elsewhere / "photo.jpg").write_bytes(JPEG)
        teaches("README.md", shortened("tessera train recipes/quickstart.toml --procs 2"),  # what ./dev quickstart leaves
                with_data.format(flowers, elsewhere / "photo.jpg", toml), left_out=["./dev ", "torchrun ", "srun ", "mpirun "])


if __name__ == "__main__":
    main(recipes_page, finetune_page, metrics_page, weights_page, parallel_page, pipelines_page, compare_layouts_page,
         search_tutorial_page, readme)
