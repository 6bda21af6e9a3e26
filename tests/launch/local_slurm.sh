#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A whole Slurm cluster on this host, for tests: munged, slurmctld and slurmd, all of whose files lie in DIR.
#   local_slurm.sh start DIR   starts it (a running one is left as it is); prints the line that srun needs:
#                              SLURM_CONF=DIR/slurm.conf
#   local_slurm.sh stop DIR    cancels its jobs, stops the daemons by pid and removes DIR (no cluster: does nothing)
# Needs root and Debian's slurm-wlm and munge; works in a container without systemd. TESSERA_SLURM_NODES (default 1)
# nodes, each a slurmd of this host, pretend to have TESSERA_SLURM_CPUS (default 8) processors. The names of several
# (node0, node1, ...) mean nothing to this host: jobs need MASTER_ADDR. A job that is requeued starts again after some 5 s
# instead of minutes. DIR must be short: a socket's path has to fit into 107 characters. Exit codes: 0 done, 1 a daemon failed (its log is shown), 2 something is missing.
set -u
nodes=${TESSERA_SLURM_NODES:-1}

fail() {
  code=$1
  shift
  echo "error: [local_slurm] $*" >&2
  exit "$code"
}

# The pid in file $1 if that process still is a program called $2. A stale file may name a stranger.
pid_of() {
  pid=$(cat "$1" 2>/dev/null) || return 1
  [ -n "$pid" ] && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$2" ] || return 1
  # A zombie has ended: where nothing reaps orphans it stays in the process table.
  case $(sed 's/.*) //; s/ .*//' "/proc/$pid/stat" 2>/dev/null) in Z | X | '') return 1 ;; esac
  echo "$pid"
}

# Waits until command $2... succeeds, $1 tenths of a second at most.
wait_for() {
  tenths=$1
  shift
  while ! "$@" >/dev/null 2>&1; do
    tenths=$((tenths - 1))
    [ "$tenths" -gt 0 ] || return 1
    sleep 0.1
  done
}

# A TCP port nobody listens on, searched from $1 upward.
free_port() {
  port=$1
  while grep -qi "^ *[0-9]*: [0-9A-F]*:$(printf %04X "$port") [0-9A-F]*:[0-9A-F]* 0A" /proc/net/tcp /proc/net/tcp6 2>/dev/null; do
    port=$((port + 1))
  done
  echo "$port"
}

node_names() {
  if [ "$nodes" = 1 ]; then hostname -s; else seq -f 'node%g' 0 $((nodes - 1)); fi
}

write_config() {
  host=$(hostname -s)
  first=$((17000 + $$ % 1000 * 4))
  controller_port=$(free_port "$first")
  port=$controller_port lines=
  for node in $(node_names); do
    port=$(free_port $((port + 1)))
    lines="$lines
NodeName=$node NodeHostname=$host NodeAddr=127.0.0.1 Port=$port CPUs=${TESSERA_SLURM_CPUS:-8} State=UNKNOWN"
  done
  cat >"$dir/slurm.conf" <<END
ClusterName=tessera
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$controller_port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket,cred_expire=5
SchedulerParameters=sched_interval=1,bf_interval=1
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
InactiveLimit=0
$lines
PartitionName=tests Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
END
}

start_munged() {
  pid_of "$dir/munge/munged.pid" munged >/dev/null && return
  # munged wants a key that only its owner reads; the folder of its socket must be open to all.
  mkdir -p "$dir/munge" && chmod 755 "$dir/munge"
  if [ ! -f "$dir/munge/key" ]; then
    (umask 077 && dd if=/dev/urandom of="$dir/munge/key" bs=1024 count=1 2>/dev/null)
  fi
  munged --force --key-file="$dir/munge/key" --socket="$dir/munge/socket" --pid-file="$dir/munge/munged.pid" \
    --log-file="$dir/munge/munged.log" --seed-file="$dir/munge/seed" --num-threads=1 2>"$dir/munge/start.log" ||
    broken munged "$dir/munge/start.log"
  wait_for 50 munge --no-input --socket="$dir/munge/socket" || broken munged "$dir/munge/munged.log"
}

start_daemon() { # slurmctld or slurmd, what its files are called, what else it is told
  program=$1 files=$dir/$2
  shift 2
  pid_of "$files.pid" "$program" >/dev/null && return
  "$program" -f "$dir/slurm.conf" "$@" >"$files.start.log" 2>&1 || broken "${files##*/}" "$files.start.log"
}

nodes_are_ready() {
  [ "$(sinfo --noheader --Node --format=%T | grep -c '^\(idle\|mixed\|allocated\)$')" = "$nodes" ]
}

broken() {
  tail -n 20 "$2" >&2 2>/dev/null
  tail -n 20 "$dir/$1.log" >&2 2>/dev/null
  stop
  fail 1 "$1 did not start on this host (its last lines are above)"
}

start() {
  [ "$(id -u)" = 0 ] || fail 2 "root is needed to run slurmd: this is user $(id -un)"
  for program in munged munge slurmctld slurmd srun sinfo hostname; do
    command -v "$program" >/dev/null || fail 2 "$program is missing (apt-get install slurm-wlm munge)"
  done
  [ "${#dir}" -le 90 ] || fail 2 "a folder name of 90 characters or less: $dir has ${#dir}"
  # What a cluster that died left here: its ports may be others' by now.
  pid_of "$dir/slurmctld.pid" slurmctld >/dev/null || stop
  mkdir -p "$dir/state" "$dir/spool" || fail 2 "cannot make $dir"
  chmod 755 "$dir"
  export SLURM_CONF="$dir/slurm.conf"
  [ -f "$SLURM_CONF" ] || write_config
  start_munged
  start_daemon slurmctld slurmctld
  for node in $(node_names); do
    mkdir -p "$dir/spool/$node"
    start_daemon slurmd "slurmd.$node" -N "$node"
  done
  wait_for 200 nodes_are_ready || broken slurmctld "$dir/slurmd.$(node_names | head -n 1).log"
  echo "SLURM_CONF=$SLURM_CONF"
}

# Stops the program $2 whose pid is in file $1: SIGTERM, after 5 s SIGKILL.
stop_daemon() {
  pid=$(pid_of "$1" "$2") || return 0
  kill -TERM "$pid" 2>/dev/null
  gone() { ! pid_of "$1" "$2"; }
  wait_for 50 gone "$1" "$2" || kill -KILL "$pid" 2>/dev/null
  wait_for 20 gone "$1" "$2" || fail 1 "$2 (pid $pid) does not end"
}

no_job_left() { [ -z "$(squeue --noheader)" ]; }

stop() {
  [ -d "$dir" ] || return 0
  if [ -f "$dir/slurm.conf" ] && pid_of "$dir/slurmctld.pid" slurmctld >/dev/null; then
    export SLURM_CONF="$dir/slurm.conf"
    timeout 5 squeue --noheader --format=%A 2>/dev/null | while read -r job; do
      timeout 5 scancel --signal=KILL "$job" 2>/dev/null
      timeout 5 scancel "$job" 2>/dev/null
    done
    wait_for 100 no_job_left
  fi
  for file in "$dir"/slurmd.*.pid; do stop_daemon "$file" slurmd; done
  stop_daemon "$dir/slurmctld.pid" slurmctld
  stop_daemon "$dir/munge/munged.pid" munged
  # Only what a cluster consists of is removed: DIR may hold a test's own files.
  (cd "$dir" && rm -rf state spool munge slurm.conf slurmctld.pid slurmctld.log slurmctld.start.log slurmd.*.pid \
    slurmd.*.log)
  rmdir "$dir" 2>/dev/null || true
}

[ $# = 2 ] || fail 2 "usage: local_slurm.sh start|stop DIR"
case $2 in /*) dir=$2 ;; *) dir=$PWD/$2 ;; esac
case $1 in
  start) start ;;
  stop) stop ;;
  *) fail 2 "start or stop was expected: found $1" ;;
esac
