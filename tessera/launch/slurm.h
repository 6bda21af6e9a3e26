// SPDX-License-Identifier: Apache-2.0
// What Slurm tells a task. Private to this room.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/launch/launch.h"

namespace tessera::launch {

/// Did srun start this process? Batch scripts and the shells of salloc carry a job's SLURM_* variables as
/// well, SLURM_PROCID=0 and the job's SLURM_NTASKS included, but nobody started the other ranks.
bool in_slurm_step();
Ranks ranks_from_slurm();

/// "node003" of "node[003-005,9],gpu1". Errors: UserError on unbalanced brackets or an empty name.
std::string first_host(std::string_view list);
/// Entry `node` of Slurm's run-length list: 2 for nodes 0-2 and 1 for node 3 of "2(x3),1". Errors: UserError.
int64_t tasks_on_node(std::string_view list, int64_t node);

}  // namespace tessera::launch
