// SPDX-License-Identifier: Apache-2.0
// The moving average of the weights, sharded as they are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/optim/state_shards.h"
#include "tessera/recipe/recipe.h"
#include "tessera/shard/sharded_model.h"

namespace tessera::optim {

/// The share of the old average at update t (1-based): options.decay, with warmup at most 1 - t^(-2/3), as
/// timm's ModelEmaV3 (use_warmup, gamma 1, power 2/3) at its step t: 0 at first, 0.999 after 31,600 updates.
double ema_decay(const recipe::EmaRecipe& options, int64_t update);

/// Local: every rank averages its shards.
class Ema {
 public:
  /// The average is the weights of now.
  Ema(const shard::ShardedModel& model, const recipe::EmaRecipe& options);

  /// After optimizer step `step` (1-based): takes in the weights where it is one of `every`.
  void follow(int64_t step);
  /// Exchanges weights and averages; the second time brings both back. Collective in that every rank must.
  void exchange(shard::ShardedModel& model);
  /// Starts anew from the weights of now.
  void restart();

  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }
  /// "ema/NAME".
  void append_shards(StateShards& shards) const;

 private:
  struct Average {
    const shard::Unit* unit;
    at::Tensor values;  // [shard_numel] float32
  };

  recipe::EmaRecipe options_;
  std::vector<Average> averages_;
  int64_t updates_ = 0;
};

}  // namespace tessera::optim
