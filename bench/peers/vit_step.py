# SPDX-License-Identifier: Apache-2.0
"""A training step of a timm or torchvision model: the peer of `tessera bench step`.

    vit_step.py MODEL BATCH MODE PRECISION [STEPS]

Forward, backward, clipping at norm 1.0 and fused AdamW over one batch of noise at the model's own image size (224 mostly). Runs on
the GPU where PyTorch sees one. Prints "MODEL batch BATCH MODE PRECISION: median X img/s, best Y img/s, peak Z GiB"; the peak
is that of the GPU's tensors, on a CPU the process's largest resident size.

  MODEL      a name of timm, or resnet50 of torchvision
  MODE       eager, compile (torch.compile), max-autotune (torch.compile with that mode)
  PRECISION  fp32, amp (bf16 autocast over fp32 weights), bf16 (weights and moments in bf16)
  STEPS      measured steps, after 3 that warm up (8)

Environment: THREADS, of a CPU (2).
"""
import os
import resource
import statistics
import sys
import time

import torch


def make_model(name):
    if name == "resnet50":
        import torchvision
        return torchvision.models.resnet50(), 224
    import timm
    model = timm.create_model(name, num_classes=1000)
    return model, model.pretrained_cfg["input_size"][-1]


class Training:
    def __init__(self, name, batch, mode, precision, device):
        self.device, self.autocast = device, precision == "amp"
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        model, size = make_model(name)
        self.model = model.to(device, dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
        self.images = torch.randn(batch, 3, size, size, device=device, dtype=dtype)
        self.labels = torch.randint(0, 1000, (batch,), device=device)
        self.forward = {"eager": lambda m: m, "compile": torch.compile,
                        "max-autotune": lambda m: torch.compile(m, mode="max-autotune")}[mode](self.model)

    def step(self):
        self.optimizer.zero_grad()
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.autocast):
            loss = torch.nn.functional.cross_entropy(self.forward(self.images).float(), self.labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        if self.device == "cuda":
            torch.cuda.synchronize()

    def seconds(self):
        start = time.perf_counter()
        self.step()
        return time.perf_counter() - start


def main():
    name, batch, mode, precision = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    steps = int(sys.argv[5]) if len(sys.argv) > 5 else 8
    torch.set_num_threads(int(os.environ.get("THREADS", "2")))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    training = Training(name, batch, mode, precision, device)
    for _ in range(3):
        training.step()
    times = [training.seconds() for _ in range(steps)]
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{name} batch {batch} {mode} {precision}: median {batch / statistics.median(times):.2f} img/s, "
          f"best {batch / min(times):.2f} img/s, peak {peak / 2**30:.2f} GiB")


main()
