// SPDX-License-Identifier: Apache-2.0
// Checkpoints of sharded modules: any LibTorch network and its optimizer, on any number of ranks and levels.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/shard/fully_shard.h"

namespace tessera::library {

/// What the program wants back besides the tensors.
struct Position {
  int64_t step = 0;
  std::string json = "{}";  // an object: epoch, best metric, ...
};

/// Writes <folder>/step_<step> as tessera::checkpoint::save does (docs/checkpoints.md): a shard file per
/// rank, then the manifest; the newest `keep` stay (0: all). Tensors: "param/NAME" in the master dtype,
/// "buffer/NAME" as rank 0 has them (in folders that hosts do not share: the first rank of each), and, with
/// an optimizer, "optimizer/KIND/NAME". Optimizers over sharded.parameters(): torch::optim::SGD, Adam, AdamW,
/// RMSprop, Adagrad, library::Lamb, Lars (UserError on another); the options of their parameter groups are
/// saved with them. Parameters that are not sharded are saved as buffers are, complex tensors as pairs of
/// numbers in a last dimension of 2. Returns the checkpoint's folder. Collective.
/// Errors: as checkpoint::save.
std::filesystem::path save_module(const std::filesystem::path& folder, const Position& position,
                                  shard::ShardedModule& sharded,
                                  const torch::optim::Optimizer* optimizer = nullptr, int64_t keep = 3);

/// Loads what save_module wrote, on any number of ranks and any level. `checkpoint`: its folder, or the
/// folder of checkpoints (then the latest); hosts may have folders of their own if each rank needs what it
/// saved itself. An optimizer gets its state and the options of its groups; without one they are not read.
/// Collective. Errors: UserError (none there, another network, another kind of optimizer or other groups of
/// parameters, damage, a part that this rank does not see), as checkpoint::load; one rank's is an error of
/// every rank.
Position load_module(const std::filesystem::path& checkpoint, shard::ShardedModule& sharded,
                     torch::optim::Optimizer* optimizer = nullptr);
/// The same where hosts saved into folders of their own and the ranks are others now: the folders of all
/// those hosts, each as above, seen by every rank (checkpoint::find_parts).
Position load_module(const std::vector<std::filesystem::path>& parts, shard::ShardedModule& sharded,
                     torch::optim::Optimizer* optimizer = nullptr);

/// Fills a network that is not sharded from one safetensors file, such as `tessera checkpoint consolidate` or
/// timm write: parameters and buffers by their names, converted to the network's dtypes. `prefix` stands
/// before the names in the file ("param/"). Errors: UserError that names the first tensors that are missing
/// or have another shape.
void load_safetensors(const std::filesystem::path& file, torch::nn::Module& module,
                      const std::string& prefix = "");

}  // namespace tessera::library
