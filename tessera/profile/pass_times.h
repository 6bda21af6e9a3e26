// SPDX-License-Identifier: Apache-2.0
// How long the units of a recipe's model compute on the ranks of this host.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/planner/profile.h"
#include "tessera/profile/lag.h"
#include "tessera/profile/measured_device.h"
#include "tessera/recipe/recipe.h"

namespace tessera::profile {

struct PassSettings {
  recipe::Recipe recipe;                        // model, precision, optimizer, loss; its layout is not read
  std::vector<int64_t> tensor = {1};            // tensor-parallel degrees; each divides `ranks`
  std::vector<int64_t> batches = {1, 2, 4, 8};  // images of a rank in a micro-batch
  int64_t rounds = 5;
  int64_t ranks = 1;    // of this host, which compute the same at the same time
  int64_t threads = 1;  // of a rank
  MeasuredDevice on = {};
  /// Seconds of a measured update that are not for its values: on a device, measure_step_end().
  double step_end = 0;
  double patience = 0;     // QuietCores
  bool with_peers = true;  // on a CPU: units that are cut also with their peers
};

struct PassTimes {
  /// Of every kind of unit with each batch size, in the model's order. Whole units have Recompute::kNone, and
  /// blocks kAll as well; for a tensor-parallel degree above 1, blocks that it cuts have kNone, kAll and
  /// kKeepSums. Replayed passes are measured of whole units, where the device records them and the recipe's
  /// run.cuda_graphs is not "off": in two models of different depth, whose difference is that of blocks.
  std::vector<planner::UnitTimes> units;
  // As in planner::Profile.
  double widen_seconds = 0, accumulate_seconds = 0, add_sum_seconds = 0, optimizer_seconds = 0;
  Lag lag = {};
  double slowed = 0;  // as in planner::Provenance
};

/// Trains a model of fewer blocks that has a unit of every kind. Each rank is a thread without peers
/// (lone_rank.h); the ranks begin every micro-batch together. Units that are cut are measured with their
/// peers as well, over the recipe's transport, where `ranks` is a multiple of their number. A device has one
/// rank, the calling thread, which has chosen it (eager::choose_device). Means (base/steady_mean.h) over
/// ranks, rounds and units of a kind; round 0 warms up and does not count, and on a CPU passes are taken
/// while nothing else slows the cores (quiet_cores.h). Batch sizes, recompute, and where the models fit into
/// memory together degrees, take turns within a round. From then on large tensors keep their memory
/// (shard::keep_tensor_memory). Errors: UserError where the model has no layers that a degree could cut;
/// with peers also UserError (no socket) and CommError.
PassTimes measure_passes(const PassSettings& settings);

inline constexpr int64_t kFewBlocks = 3;  // two ordinary ones and the last

/// The model with at most `most` blocks (transformers and ResMLPs; other models as they are). `kinds`: if not
/// null, gets the kind of each of its units in the whole model (planner::unit_kinds). Pure.
arch::ModelConfig model_of_few_blocks(const arch::ModelConfig& model, std::vector<std::string>* kinds,
                                      int64_t most = kFewBlocks);

}  // namespace tessera::profile
