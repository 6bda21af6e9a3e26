// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/ema.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "tessera/checkpoint/names.h"
#include "tessera/ops/elementwise.h"
#include "tessera/optim/update_rule.h"

namespace tessera::optim {

double ema_decay(const recipe::EmaRecipe& options, int64_t update) {
  if (!options.warmup) return options.decay;
  return std::min(options.decay, 1.0 - std::pow(static_cast<double>(update), -2.0 / 3.0));
}

Ema::Ema(const shard::ShardedModel& model, const recipe::EmaRecipe& options) : options_(options) {
  for (const auto& unit : model.units()) averages_.push_back({unit.get(), unit->new_state()});
  restart();
}

void Ema::restart() {
  for (Average& average : averages_) average.values.copy_(average.unit->master());
  updates_ = 0;
}

void Ema::follow(int64_t step) {
  if (step % options_.every != 0) return;
  const double decay = ema_decay(options_, ++updates_);
  for (const Average& average : averages_) {
    ops::move_average(average.values, average.unit->master(), decay);
  }
}

void Ema::exchange(shard::ShardedModel& model) {
  for (const Average& average : averages_) {
    const at::Tensor weights = average.unit->master();
    if (!weights.is_cpu()) {
      const at::Tensor before = weights.clone();
      weights.copy_(average.values);
      average.values.copy_(before);
      continue;
    }
    auto* mine = average.values.data_ptr<float>();
    std::swap_ranges(mine, mine + average.values.numel(), weights.data_ptr<float>());
  }
  model.parameters_changed();
}

void Ema::append_shards(StateShards& shards) const {
  for (const Average& average : averages_) {
    for (const shard::Shard& shard : average.unit->shards()) {
      add_shard(shards, checkpoint::names::kAverage, *average.unit, shard, part_of(average.values, shard));
    }
  }
}

}  // namespace tessera::optim
