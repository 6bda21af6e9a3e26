# SPDX-License-Identifier: Apache-2.0
"""200 steps of recipes/quickstart.toml without augmentation, as PyTorch and timm write them, and as `tessera train` does: one
loss curve.

With AdamW at 5e-4: at 2e-3 the first steps are so steep that differences of rounding, 1e-7 at first, grow to 1e-2. At 5e-4 they
stay at 4e-7. With the recipe's Muon, too: PyTorch's, but for the bfloat16 that it rounds to, at the same rate.

The half of this file below the tests runs under the Python that has torch, timm, safetensors. It makes the weights that
both begin with, and reads the same images in the same order: Tessera's order is a formula of the seed (data/permutation.h).
"""
import csv
import gzip
import math
import pathlib
import subprocess
import sys

DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")
STEPS, BATCH, LR, WEIGHT_DECAY, CLIP, WARMUP, SEED = 200, 128, 5e-4, 0.05, 1.0, 40, 0
TOLERANCE = 1e-3


def one_curve(optimizer):
    from harness import SOURCE, Missing, check, losses, scratch, settings, tessera, train
    from peers import peers_python

    if not DATA.is_dir():
        raise Missing(f"{DATA} is not there (apt-get install dataset-fashion-mnist)")
    python = peers_python("torch", "timm", "safetensors")
    with scratch() as folder:
        done = subprocess.run([python, __file__, "timm", folder, optimizer], capture_output=True, text=True, timeout=900)
        check(done.returncode == 0, done.stdout, done.stderr)
        with open(folder / "curve.csv", newline="") as file:
            expected = [float(row["loss"]) for row in csv.DictReader(file)]
        tessera("checkpoint", "convert", "timm.safetensors", "start/checkpoints", "--heads", 4, folder=folder).done()
        keys = settings(train__init_from=folder / "start", train__steps=STEPS, train__batch=BATCH, train__seed=SEED,
                        train__clip=CLIP, train__log_every=1, train__eval_every_epochs=0, optimizer__name=optimizer,
                        optimizer__lr=LR, optimizer__weight_decay=WEIGHT_DECAY, schedule__warmup_steps=WARMUP, precision__compute="fp32")
        for procs in (1, 2):
            run = folder / f"run-{procs}"
            train(folder, "--procs", procs, *keys, recipe=SOURCE / "recipes/quickstart.toml", run=run.name).done(600)
            found = [loss for _, loss in losses(run)]
            check(len(found) == len(expected) == STEPS, len(found), len(expected))
            worst = max(abs(a - b) / b for a, b in zip(found, expected, strict=True))
            print(f"  {optimizer}, {procs} ranks: loss {found[0]:.4f} to {found[-1]:.4f}, largest relative difference {worst:.1e}", flush=True)
            check(worst <= TOLERANCE, worst)
            check(found[-1] < 0.5 * found[0], "it learned nothing", found[-1])
            out = tessera("compare", run, "curve.csv", "--tolerance", TOLERANCE, folder=folder)
            check(out.wait() == 0, out.text())


def one_curve_with_adamw():
    one_curve("adamw")


def one_curve_with_muon():
    one_curve("muon")


# Below: under the other Python.

GOLDEN, MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


def mix(z):
    """SplitMix64's finaliser of an int or an array of uint64."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def step_and_mix(z):
    return mix((z + GOLDEN) & MASK)


def key_of_name(seed, name):
    key = 0xCBF29CE484222325
    for byte in name.encode():
        key = ((key ^ byte) * 0x100000001B3) & MASK
    return step_and_mix(step_and_mix(seed) ^ key)


def key_of_number(key, number):
    return step_and_mix(step_and_mix(key) ^ step_and_mix(number ^ 0x5851F42D4C957F2D))


def permutation(key, size, count):
    """What comes first in an order of 0 .. size - 1: 90 rounds of swap-or-not."""
    places = []
    rounds = [mix((key + number * GOLDEN) & MASK) for number in range(1, 91)]
    for x in range(count):
        for word in rounds:
            partner = (word * size >> 64) - x
            if partner < 0:
                partner += size
            if mix((~word & MASK) ^ (max(x, partner) * GOLDEN & MASK)) >> 63:
                x = partner
        places.append(x)
    return places


def learning_rate(step):
    if step < WARMUP:
        return LR * step / WARMUP
    return LR * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


def adamw(torch, parameters):
    """The given parameters, by name; matrices alone decay."""
    decayed = [p for name, p in parameters.items() if p.ndim >= 2 and name != "pos_embed"]
    others = [p for name, p in parameters.items() if not (p.ndim >= 2 and name != "pos_embed")]
    return torch.optim.AdamW([{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}])


def muon(torch, parameters):
    """The blocks' matrices; AdamW has the rest."""
    sys.path.append(str(pathlib.Path(__file__).parents[1] / "train"))
    from make_optimizer_fixture import newton_schulz_in_float32

    torch.optim._muon._zeropower_via_newtonschulz = newton_schulz_in_float32
    inner = {name: p for name, p in parameters.items() if name.startswith("blocks.") and p.ndim == 2}
    rest = {name: p for name, p in parameters.items() if name not in inner}
    return torch.optim.Muon(list(inner.values()), weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"), adamw(torch, rest)


def train_with_timm(folder, name):
    import numpy as np
    import safetensors.torch
    import torch
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(1)
    model = VisionTransformer(img_size=28, patch_size=7, in_chans=1, num_classes=10, embed_dim=128, depth=6, num_heads=4,
                              class_token=False, global_pool="avg")
    safetensors.torch.save_file(model.state_dict(), folder / "timm.safetensors")

    with gzip.open(DATA / "train-images-idx3-ubyte.gz") as file:
        images = torch.from_numpy(np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28).copy())
    with gzip.open(DATA / "train-labels-idx1-ubyte.gz") as file:
        labels = torch.from_numpy(np.frombuffer(file.read(), np.uint8, offset=8).astype(np.int64))
    epoch = key_of_number(key_of_number(key_of_name(SEED, "order"), 0), 0)  # of the only source's first pass
    order = permutation(epoch, len(images), STEPS * BATCH)

    parameters = dict(model.named_parameters())
    optimizers = muon(torch, parameters) if name == "muon" else [adamw(torch, parameters)]
    model.train()
    with open(folder / "curve.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["step", "loss"])
        for step in range(STEPS):
            batch = order[step * BATCH:(step + 1) * BATCH]
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(step)
                optimizer.zero_grad()
            x = (images[batch].float() / 255 - 0.286) / 0.353
            loss = torch.nn.functional.cross_entropy(model(x), labels[batch])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            for optimizer in optimizers:
                optimizer.step()
            rows.writerow([step + 1, loss.item()])


if __name__ == "__main__":
    if sys.argv[1:2] == ["timm"]:
        train_with_timm(pathlib.Path(sys.argv[2]), sys.argv[3])
    else:
        from harness import main

        main(one_curve_with_adamw, one_curve_with_muon)
