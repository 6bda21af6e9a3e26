// SPDX-License-Identifier: Apache-2.0
// Which launcher started this process, and which rank it is.
#include <fcntl.h>
#include <sys/socket.h>

#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/slurm.h"
#include "tessera/launch/variables.h"

namespace tessera::launch {
namespace {

constexpr const char* kEnvironment = "launch.environment";

int listening_socket(int64_t fd) {
  int listens = 0;
  socklen_t size = sizeof listens;
  const int socket = static_cast<int>(fd);
  if (::getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) {
    user_error({.where = kEnvironment,
                .problem = concat("TESSERA_MASTER_LISTEN_FD is ", fd, ", which is not a listening socket"),
                .hint = "unset it: only the program itself sets this variable"});
  }
  ::fcntl(socket, F_SETFD, FD_CLOEXEC);
  return socket;
}

/// A child of run_local.
Ranks ranks_from_parent() {
  constexpr const char* kBecause = "TESSERA_RANK";
  Ranks ranks;
  ranks.launcher = "local";
  ranks.world = needed_number("TESSERA_WORLD_SIZE", 1, kMostRanks, kBecause);
  ranks.rank = needed_number("TESSERA_RANK", 0, ranks.world - 1, kBecause);
  ranks.local_world = needed_number("TESSERA_LOCAL_WORLD_SIZE", 1, ranks.world, kBecause);
  ranks.local_rank = needed_number("TESSERA_LOCAL_RANK", 0, ranks.local_world - 1, kBecause);
  if (const auto fd = number_variable("TESSERA_MASTER_LISTEN_FD", 3, 1 << 20)) {
    ranks.master_listen_fd = listening_socket(*fd);
  }
  if (ranks.world == 1) return ranks;
  ranks.master_host = needed_variable("TESSERA_MASTER_ADDR", kBecause);
  ranks.master_port = static_cast<uint16_t>(needed_number("TESSERA_MASTER_PORT", 1, 65535, kBecause));
  return ranks;
}

bool is_this_host(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

/// torchrun, a job controller, or a person with one shell a rank. Without LOCAL_*: on a loopback address all
/// ranks are on this host; otherwise each rank is alone on its own (one container a rank).
Ranks ranks_from_rank_variables() {
  Ranks ranks;
  ranks.launcher = variable("TORCHELASTIC_RUN_ID") ? "torchrun" : "environment";
  ranks.world = needed_number("WORLD_SIZE", 1, kMostRanks, "RANK");
  ranks.rank = needed_number("RANK", 0, ranks.world - 1, "WORLD_SIZE");
  if (ranks.world == 1) return ranks;
  ranks.master_host = needed_variable("MASTER_ADDR", "WORLD_SIZE");
  ranks.master_port = static_cast<uint16_t>(needed_number("MASTER_PORT", 1, 65535, "WORLD_SIZE"));
  ranks.master_is_served = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  const bool together = is_this_host(ranks.master_host);
  const auto local_world = number_variable("LOCAL_WORLD_SIZE", 1, ranks.world);
  if (!local_world && !together && variable("LOCAL_RANK")) needed_variable("LOCAL_WORLD_SIZE", "LOCAL_RANK");
  ranks.local_world = local_world.value_or(together ? ranks.world : 1);
  const auto local_rank = number_variable("LOCAL_RANK", 0, ranks.local_world - 1);
  if (!local_rank && !together && local_world) needed_variable("LOCAL_RANK", "LOCAL_WORLD_SIZE");
  ranks.local_rank = local_rank.value_or(together ? ranks.rank % ranks.local_world : 0);
  return ranks;
}

uint16_t openmpi_port() {
  if (const auto port = number_variable("MASTER_PORT", 1, 65535)) return static_cast<uint16_t>(*port);
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
    if (const auto job = variable(name)) return port_of_job(random_key(0, *job));
  }
  user_error({.where = kEnvironment,
              .problem = "MASTER_PORT is not set, and mpirun gave no PMIX_NAMESPACE to derive a port from",
              .hint = "start with mpirun -x MASTER_PORT=29500"});
}

Ranks ranks_from_openmpi() {
  constexpr const char* kBecause = "OMPI_COMM_WORLD_RANK";
  Ranks ranks;
  ranks.launcher = "openmpi";
  ranks.world = needed_number("OMPI_COMM_WORLD_SIZE", 1, kMostRanks, kBecause);
  ranks.rank = needed_number("OMPI_COMM_WORLD_RANK", 0, ranks.world - 1, kBecause);
  if (ranks.world == 1) return ranks;
  ranks.local_world = needed_number("OMPI_COMM_WORLD_LOCAL_SIZE", 1, ranks.world, kBecause);
  ranks.local_rank = needed_number("OMPI_COMM_WORLD_LOCAL_RANK", 0, ranks.local_world - 1, kBecause);
  if (const auto host = variable("MASTER_ADDR")) {
    ranks.master_host = *host;
  } else if (ranks.local_world != ranks.world) {
    // OMPI_MCA_orte_hnp_uri names the host of mpirun, which need not be that of rank 0.
    user_error({.where = kEnvironment,
                .problem = "MASTER_ADDR is not set, but mpirun started ranks on several hosts",
                .expected = "the host of rank 0",
                .hint = "start with mpirun -x MASTER_ADDR=<first host>"});
  }
  ranks.master_port = openmpi_port();
  return ranks;
}

/// Scripts export one of RANK and WORLD_SIZE beside a launcher that tells both: then they must agree.
void check_agreement(const char* name, int64_t launchers, const std::string& launcher) {
  const auto given = number_variable(name, 0, kMostRanks);
  if (given && *given != launchers) {
    user_error({.where = kEnvironment,
                .problem = concat(name, " is ", *given, ", but ", launcher, " says ", launchers),
                .hint = concat("unset ", name)});
  }
}

}  // namespace

Ranks ranks_from_environment() {
  if (variable("TESSERA_RANK")) return ranks_from_parent();
  const bool rank = variable("RANK").has_value(), world = variable("WORLD_SIZE").has_value();
  if (rank && world) return ranks_from_rank_variables();
  Ranks ranks;
  if (variable("OMPI_COMM_WORLD_RANK")) {
    ranks = ranks_from_openmpi();
  } else if (in_slurm_step()) {
    ranks = ranks_from_slurm();
  } else if (rank || world) {
    needed_variable(rank ? "WORLD_SIZE" : "RANK", rank ? "RANK" : "WORLD_SIZE");
  } else if (variable("PMIX_RANK")) {
    user_error(
        {.where = kEnvironment,
         .problem = "PMIX_RANK is set, but RANK and WORLD_SIZE are not, so the number of ranks is unknown",
         .hint = "start with mpirun or srun"});
  } else {
    return ranks;
  }
  check_agreement("RANK", ranks.rank, ranks.launcher);
  check_agreement("WORLD_SIZE", ranks.world, ranks.launcher);
  return ranks;
}

}  // namespace tessera::launch
