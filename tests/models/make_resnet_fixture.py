# SPDX-License-Identifier: Apache-2.0
"""Makes tests/models/fixtures/resnet.json: what torchvision computes for ResNets with weights, running statistics and
images of make_parity_fixture.py's formula: logits while training and in evaluation, loss, gradients, and the
statistics afterwards. Everything in float64.

    make_resnet_fixture.py            writes the fixture
    make_resnet_fixture.py --check    makes it again and compares; exit code 1 where they differ
"""
import pathlib
import sys

import torch
import torchvision
from torchvision.models.resnet import Bottleneck, ResNet

import make_parity_fixture as formula

FIXTURE = pathlib.Path(__file__).parent / "fixtures" / "resnet.json"
formula.SAMPLES = 8


def fill(model):
    formula.fill(model)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if buffer.ndim == 0:
                continue
            u = torch.from_numpy(formula.uniform(name, buffer.numel())).double()
            buffer.copy_(u * 0.125 if name.endswith("mean") else 1.0 + u * 0.25)


def case(model, config, batch, size):
    model = model.double()
    fill(model)
    classes = model.fc.out_features
    images = torch.from_numpy(formula.uniform("images", batch * 3 * size * size)).view(batch, 3, size, size).double()
    with torch.no_grad():
        evaluated = model.eval()(images)
    logits = model.train()(images)
    loss = torch.nn.functional.cross_entropy(logits, formula.targets(batch, classes))
    loss.backward()
    statistics = {name: formula.describe_gradient(name, buffer.double()) for name, buffer in model.named_buffers()}
    return {"config": config, "batch": batch, "image_size": size, "classes": classes,
            "evaluated": formula.digits(evaluated.reshape(-1).tolist()),
            "logits": formula.digits(logits.detach().reshape(-1).tolist()),
            "logits_std": [formula.digits([t.std().item()], 3)[0] for t in (evaluated, logits)],
            "loss": formula.digits([loss.item()])[0],
            "gradients": {name: formula.describe_gradient(name, p.grad) for name, p in model.named_parameters()},
            "statistics": statistics}


def make():
    return {"torchvision": torchvision.__version__.split("+")[0], "cases": {
        "resnet18": case(torchvision.models.resnet18(num_classes=100), "resnet18", 6, 96),
        "bottlenecks": case(ResNet(Bottleneck, [1, 2, 1, 1], num_classes=50), [1, 2, 1, 1], 6, 97)}}


def main():
    made = make()
    print("stds of logits", [one["logits_std"] for one in made["cases"].values()])
    return formula.keep(FIXTURE, made, "--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
