// SPDX-License-Identifier: Apache-2.0
// Who am I among the ranks: local ranks started by the program itself, or the variables a launcher set.
// No LibTorch: the parent of local ranks never loads it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tessera/launch/pretended_network.h"

namespace tessera::launch {

/// This process's place.
struct Ranks {
  int64_t rank = 0, world = 1;
  int64_t local_rank = 0, local_world = 1;  // on this host
  std::string master_host = "127.0.0.1";
  uint16_t master_port = 0;         // 0 with world 1: no rendezvous needed
  int master_listen_fd = -1;        // rank 0 of local ranks: the listening socket the parent opened
  bool master_is_served = false;    // torchrun's agent serves the store there: rank 0 connects as well
  std::string launcher = "single";  // "single", "local", "torchrun", "slurm", "openmpi", "environment",
                                    // "pretend": the other ranks do not exist (tessera train --pretend-world)
  bool pretended() const { return launcher == "pretend"; }
  /// Does this process print what all ranks would, and write the run folder? Rank 0, or the only one that is
  /// there.
  bool speaks() const { return rank == 0 || pretended(); }
  PretendedNetwork network = {};  // where the others do not exist
};

/// Reads the environment; the first of these that is there decides (README.md of this room has the whole
/// table): TESSERA_* (set by run_local for its children); torchrun / plain RANK and WORLD_SIZE, LOCAL_RANK,
/// LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT; OpenMPI OMPI_COMM_WORLD_* and PMIX_NAMESPACE (port); a Slurm
/// step's SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_NODELIST (first host, ranges understood),
/// SLURM_JOB_ID (port). A world of one where nothing is set, and in a Slurm job outside of srun. An empty
/// variable counts as not set. The listening socket gets close-on-exec here, so that a rank's own children do
/// not inherit it. Errors: UserError on values that contradict or miss (names the variable).
Ranks ranks_from_environment();

struct LocalOptions {
  int64_t procs = 2;
  std::string program;        // a path or a name on PATH; empty: this program once more
  std::string log_dir;        // rank N > 0 writes to <log_dir>/rank-N.log; may be empty until known (then a
                              // temporary folder holds them and is named when something fails)
  int64_t grace_seconds = 5;  // after one rank failed, others get this long to say what they saw
};

/// Starts `procs` copies of the program with `arguments` (those after the program's name) plus TESSERA_*
/// variables, waits for all. Ranks have an empty stdin. Copies of this program start with these signals
/// blocked (install_signal_handlers opens them, so none is lost while LibTorch loads). Call it from the main
/// thread, before other threads exist. Errors: UserError (no such program; no process, socket or log file to
/// be had; a launcher started this program already). Forwards SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 to every
/// rank; a second SIGINT or SIGTERM within the run kills at once. SIGHUP is ignored. When a rank dies, names
/// it with its signal or exit code, ends the others, returns that rank's exit code (or 3 for a signal).
/// Children die with the parent (PR_SET_PDEATHSIG). No process, port or file stays.
/// `stopped`, where given: was the run asked to stop by one of these signals?
int run_local(const LocalOptions& options, const std::vector<std::string>& arguments,
              bool* stopped = nullptr);

/// In a rank: SIGINT/SIGTERM set a flag (two within 300 ms count as one, launchers repeat them), a later
/// second one ends the process at once (exit 130/143). SIGUSR1/SIGUSR2 set the same flag and never end the
/// process. SIGHUP and SIGPIPE are ignored.
void install_signal_handlers();
/// The same for what has nothing to save: the first of these signals ends the process at once.
void end_on_signals();
/// Has one of these signals arrived?
bool stop_requested();
/// Number of the first of these signals; 0 before any.
int stop_signal();
/// For tests and time limits.
void request_stop();

/// The CPUs that the calling thread may run on; after stay_on_own_cores() those from before it.
std::set<int> allowed_cpus();
/// Cores this process may use (affinity and cgroup limit respected).
int64_t available_cores();
/// Keeps the calling thread, and the threads that it starts from now on, on this rank's share of the cores
/// that the process may use. Otherwise the scheduler moves ranks and their transports' threads from core to
/// core, and ranks wait longer for each other's messages over TCP. Does nothing (false) for one rank, or
/// where a share has fewer cores than a rank has `threads`. allowed_cpus() and available_cores() stay what
/// they were. Requires: all ranks of the host may use the same cores, and 0 <= local_rank < local_world.
bool stay_on_own_cores(int64_t local_rank, int64_t local_world, int64_t threads);
/// This host's cores divided by its ranks, at least 1.
int64_t cores_per_rank(const Ranks& ranks);
/// The compute threads of a rank: `wanted` where it is positive (run.threads), else OMP_NUM_THREADS where
/// that is set (of a list "4,2" the first), else cores_per_rank(). Errors: UserError where OMP_NUM_THREADS is
/// needed and no number from 1 up.
int64_t threads_per_rank(int64_t wanted, const Ranks& ranks);
/// "1, from OMP_NUM_THREADS ..." where threads_per_rank() takes that; else "".
std::string threads_note(int64_t wanted);
/// The share of the CPUs this process may run on that others had between its making and stop(): programs, and
/// the host of a virtual machine. Of a tenth of a second and less it knows nothing.
class OthersOnCpus {
 public:
  OthersOnCpus();
  void stop();
  /// CPU seconds of this process, meanwhile.
  double own() const { return own_; }
  /// 0 to 1. `own`: CPU seconds of this process and those that belong to it, meanwhile.
  double share(double own) const;

 private:
  double seconds_, busy_, own_;
};

/// What a bug report needs of the machine: "Linux 6.1.0 x86_64; Intel(R) Xeon(R) ...; avx2 avx512f
/// avx512_bf16 amx_bf16".
std::string machine_description();

/// Names of the NVIDIA GPUs of this host, "NVIDIA H100 80GB HBM3", as the driver lists them in `listed`;
/// empty where it lists none, as in some containers.
std::vector<std::string> gpu_names(const std::filesystem::path& listed = "/proc/driver/nvidia/gpus");

/// Bytes of memory this process may use (cgroup limit respected) and what is free now.
int64_t available_memory();

}  // namespace tessera::launch
