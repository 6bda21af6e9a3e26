#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A training on the hosts of a file, started by OpenMPI's mpirun:
#   launch/openmpi.sh HOSTS RECIPE [OPTION...]
#   launch/openmpi.sh hosts.txt recipes/vit_large.toml --set data.source=folder:/data/imagenet --resume latest
# HOSTS has a line a host, rank 0's first: "node0 slots=1". slots are its ranks: 1 where the CPU computes (a rank uses all cores),
# else as many as it has GPUs. Needed: ssh without a password to all of them, and the program, this folder and the data at the same
# paths. Ctrl-C and SIGTERM reach every rank: all save and end. When a rank fails mpirun names it and ends the others.
set -u
[ $# -ge 2 ] || { echo "error: [launch/openmpi.sh] HOSTS RECIPE [OPTION of tessera train...]: found $# words" >&2; exit 2; }
hosts=$1
shift

# OpenMPI does not tell ranks where rank 0 lives. Edit where the others know that host by another name.
: "${MASTER_ADDR:=$(awk '!/^[ \t]*(#|$)/ { print $1; exit }' "$hosts")}"
: "${MASTER_PORT:=29500}" # free on that host
export MASTER_ADDR MASTER_PORT

# mpirun itself would kill the ranks one second after a SIGTERM. It forwards a SIGUSR1, to a rank and its shell: the shell turns it
# into the SIGTERM that was meant. A Ctrl-C must not reach mpirun: it has a session of its own.
# shellcheck disable=SC2016
rank='(trap "" USR1; exec "$@") & rank=$! again=1; trap "again=1; kill -s TERM $rank" USR1
  while [ $again = 1 ]; do again=0; wait $rank; code=$?; done; exit $code'
# Edit: -x NAME for each variable that the recipe or the system wants everywhere (-x CLOTHING160 -x NCCL_SOCKET_IFNAME), and
# --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 where hosts have networks that do not reach each other.
# Without --bind-to none mpirun would tie each rank to one core.
setsid mpirun --hostfile "$hosts" --bind-to none -x MASTER_ADDR -x MASTER_PORT \
  sh -c "$rank" launch/openmpi.sh "${TESSERA:-tessera}" train "$@" &
mpirun=$! again=1
trap 'again=1; kill -s USR1 "$mpirun"' INT TERM
while [ $again = 1 ]; do again=0; wait "$mpirun"; code=$?; done
exit "$code"
