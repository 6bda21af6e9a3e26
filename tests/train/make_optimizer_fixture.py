# SPDX-License-Identifier: Apache-2.0
"""Makes tests/train/fixtures/optimizers.json: where 50 steps of timm's and PyTorch's optimizers lead, from start
values and gradients that tests/train/given_gradients.h makes too. Each tensor's every 7th number is stored.

    make_optimizer_fixture.py            writes the fixture (timm 1.0.31, torch 2.11)
    make_optimizer_fixture.py --check    makes it again and compares; exit code 1 where they differ
"""
import argparse
import json
import math
import pathlib
import sys

import timm.optim
import torch

sys.path.append(str(pathlib.Path(__file__).parents[1] / "models"))
from make_parity_fixture import uniform  # noqa: E402

FIXTURE = pathlib.Path(__file__).parent / "fixtures" / "optimizers.json"
STEPS, EVERY = 50, 7
PARAMETERS = {  # name: (shape, matrix, a unit between the first and the last)
    "pos_embed": ((1, 5, 8), False, False),
    "patch_embed.proj.weight": ((36, 3, 2, 33), True, False),
    "patch_embed.proj.bias": ((36,), False, False),
    "blocks.0.norm1.weight": ((40,), False, True),
    "blocks.0.attn.qkv.weight": ((48, 33), True, True),
    "blocks.0.attn.qkv.bias": ((48,), False, True),
    "blocks.0.mlp.fc1.weight": ((33, 64), True, True),
    "blocks.0.conv.weight": ((6, 5, 3, 3), True, True),
    "head.weight": ((7, 33), True, False),
    "head.bias": ((7,), False, False),
}


def tensor(name, shape, scale):
    return torch.from_numpy(uniform(name, math.prod(shape))).mul(scale).view(shape)


def newton_schulz_in_float32(gradient, coefficients, steps, eps):
    """torch.optim's own, but for the bfloat16 that it rounds to."""
    a, b, c = coefficients
    x = gradient.T if gradient.size(0) > gradient.size(1) else gradient
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if gradient.size(0) > gradient.size(1) else x


def groups(values, **matrices):
    """Matrices with these options, then the rest, which do not decay."""
    by_kind = {True: [], False: []}
    for name, value in values.items():
        by_kind[PARAMETERS[name][1]].append(value)
    return [{"params": by_kind[True], **matrices}, {"params": by_kind[False], "weight_decay": 0.0}]


def lamb(values):
    """In float64: in float32 timm's own bias correction, 1 - 0.999^t, is off by up to 6e-5 in the first steps."""
    for value in values.values():
        value.data = value.double()
    return [timm.optim.Lamb(groups(values, weight_decay=0.05), lr=0.02, eps=1e-6, max_grad_norm=None)]


def lars(values):
    return [timm.optim.Lars(groups(values, weight_decay=0.02, always_adapt=True), lr=0.5, momentum=0.9, nesterov=True,
                            trust_coeff=0.02)]


def lion(values):
    return [timm.optim.Lion(groups(values, weight_decay=0.1), lr=1e-3, betas=(0.9, 0.99))]


def adafactor(values):
    return [timm.optim.AdafactorBigVision(groups(values, weight_decay=0.1), lr=0.01, min_dim_size_to_factor=32,
                                          momentum_dtype=torch.float32)]


def muon(values):
    """PyTorch takes two dims only: a convolution is a view of its kernels as rows."""
    inner = [value.flatten(1) for name, value in values.items() if all(PARAMETERS[name][1:])]
    rest = {name: value for name, value in values.items() if not all(PARAMETERS[name][1:])}
    torch.optim._muon._zeropower_via_newtonschulz = newton_schulz_in_float32
    return [torch.optim.Muon([torch.nn.Parameter(value) for value in inner], lr=0.01, weight_decay=0.1,
                             adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(groups(rest, weight_decay=0.1), lr=0.01)]


def train(make):
    values = {name: tensor(name, shape, 0.5) for name, (shape, _, _) in PARAMETERS.items()}
    optimizers = make(values)
    rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    # Parameters of the optimizers are the values themselves or views of them.
    by_memory = {value.data_ptr(): name for name, value in values.items()}
    for step in range(1, STEPS + 1):
        for optimizer, start in zip(optimizers, rates):
            for group, lr in zip(optimizer.param_groups, start):
                group["lr"] = lr * (1 - 0.01 * (step - 1))
                for parameter in group["params"]:
                    name = by_memory[parameter.data_ptr()]
                    parameter.grad = tensor(f"{name}/{step}", PARAMETERS[name][0], 0.125).view(parameter.shape).to(parameter.dtype)
            optimizer.step()
    return {name: [float(f"{x:.9g}") for x in value.flatten()[::EVERY].tolist()] for name, value in values.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    made = {"versions": {"timm": timm.__version__, "torch": torch.__version__.split("+")[0]}, "every": EVERY}
    check = parser.parse_args().check
    torch.set_num_threads(1)
    made["optimizers"] = {make.__name__: train(make) for make in (lamb, lars, lion, adafactor, muon)}
    if not check:
        FIXTURE.write_text(json.dumps(made, indent=0).replace(",\n", ", ").replace("[\n", "[").replace("\n]", "]") + "\n")
        return 0
    kept = json.loads(FIXTURE.read_text())
    worst = max(abs(a - b) for name, values in made["optimizers"].items() for key, row in values.items()
                for a, b in zip(row, kept["optimizers"][name][key]))
    print(f"largest difference {worst:.2g}")
    return int(worst > 1e-6)


if __name__ == "__main__":
    sys.exit(main())
