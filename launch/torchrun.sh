#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A training started by PyTorch's torchrun, which a Python with PyTorch has on every host. On each of them, within minutes:
#   HOSTS=2 RANKS=8 HEAD=node0:29400 launch/torchrun.sh RECIPE [OPTION...]
# and on one host alone:
#   RANKS=8 launch/torchrun.sh recipes/vit_large.toml --set data.source=folder:/data/imagenet --resume latest
# HOSTS of them take part, with RANKS each: 1 where the CPU computes (a rank uses all cores), else as many as the host has GPUs.
# HEAD is one of the hosts, and a free port on it. When a rank fails torchrun names it and ends all: call again with --resume latest.
set -u
[ $# -ge 1 ] || { echo "error: [launch/torchrun.sh] RECIPE [OPTION of tessera train...]: found no words" >&2; exit 2; }

# Edit: --local-addr NAME where other hosts know this one by another name than `hostname` says.
# --max-restarts 0: ranks that torchrun starts again would meet at a store that still has the words of the first ones.
# To stop in order use run.time_limit: a torchrun that gets a SIGTERM may leave those of other hosts waiting for minutes.
# shellcheck disable=SC2086 # TORCHRUN may be several words: "python -m torch.distributed.run"
exec ${TORCHRUN:-torchrun} --no-python --nnodes "${HOSTS:-1}" --nproc-per-node "${RANKS:-1}" --max-restarts 0 \
  --rdzv-backend c10d --rdzv-endpoint "${HEAD:-localhost:0}" --rdzv-id "${JOB:-tessera}" \
  "${TESSERA:-tessera}" train "$@"
