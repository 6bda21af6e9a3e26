# SPDX-License-Identifier: Apache-2.0
"""A sharded training step by PyTorch's FSDP2 over Gloo: the peer of ZeRO-3 on CPUs.

    OMP_NUM_THREADS=1 torchrun --nproc-per-node RANKS fsdp_step.py MODEL BATCH_PER_RANK [ckpt]

fully_shard of each block of a timm ViT and of the root, bf16 parameters on the wire, gradients reduced in fp32, clipping at 1.0,
AdamW; one thread a process. `ckpt` recomputes activations. Rank 0 prints "... median N img/s, ... peak rss N GiB".
"""
import resource
import statistics
import sys
import time

import timm
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def sharded(model, mesh):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def main():
    name, batch = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    model = timm.create_model(name, num_classes=1000)
    model.set_grad_checkpointing("ckpt" in sys.argv[3:])
    model = sharded(model, init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    images, labels = torch.randn(batch, 3, 224, 224), torch.randint(0, 1000, (batch,))

    def seconds():
        dist.barrier()
        start = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images).float(), labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        dist.barrier()
        return time.perf_counter() - start

    for _ in range(2):
        seconds()
    times = [seconds() for _ in range(7)]
    if dist.get_rank() == 0:
        images_a_step, peak = batch * world, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{name} fsdp2 world {world} batch/rank {batch}: median {images_a_step / statistics.median(times):.2f} img/s, "
              f"best {images_a_step / min(times):.2f} img/s, peak rss {peak:.2f} GiB")
    dist.destroy_process_group()


main()
