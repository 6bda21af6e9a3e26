# SPDX-License-Identifier: Apache-2.0
"""Prints what resnet_test.cpp holds: torchvision's parameters and multiply-adds.  python resnet_counts.py"""
import torch
import torchvision

for name in ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"):
    with torch.device("meta"):
        model = torchvision.models.get_model(name)
    macs = 0

    def count(module, inputs, output):
        global macs
        macs += output.numel() * module.weight[0].numel()

    for module in model.modules():
        if isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)):
            module.register_forward_hook(count)
    model(torch.empty(1, 3, 224, 224, device="meta"))
    print(name, sum(p.numel() for p in model.parameters()), f"{macs / 1e9:.4f} GMACs",
          len(list(model.parameters())), "parameters", len(list(model.buffers())), "buffers")
