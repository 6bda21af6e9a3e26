// SPDX-License-Identifier: Apache-2.0
// What an optimizer keeps, by name: the state of each parameter and the options of each group. Private to the
// room.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tessera/shard/fully_shard.h"

namespace tessera::library {

/// The state of one parameter: its tensors (undefined where unused) and its count of steps.
struct OptimizerSlots {
  std::vector<std::pair<const char*, at::Tensor*>> tensors;
  int64_t* step = nullptr;
};
OptimizerSlots slots_of(torch::optim::OptimizerParamState& state);

/// "Adam". Errors: UserError on a kind of optimizer that is not among those of save_module.
std::string kind_of(const torch::optim::Optimizer& optimizer);
/// State as this optimizer keeps it, without tensors.
std::unique_ptr<torch::optim::OptimizerParamState> fresh_state(const torch::optim::Optimizer& optimizer);

/// [{"parameters": ["fc1.weight", ...], "lr": 0.1, ...}, ...], by parameter group.
nlohmann::json groups_of(const torch::optim::Optimizer& optimizer, const shard::ShardedModule& sharded);
/// Gives the groups the options that groups_of() read. Errors: UserError where the groups hold different
/// parameters.
void restore_groups(const nlohmann::json& saved, torch::optim::Optimizer& optimizer,
                    const shard::ShardedModule& sharded);

}  // namespace tessera::library
