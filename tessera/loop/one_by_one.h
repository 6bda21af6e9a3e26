// SPDX-License-Identifier: Apache-2.0
// The micro-batches of a step one after another, as back ends pass them that are no pipeline.
#pragma once

#include <cstdint>

#include "tessera/data/loader.h"
#include "tessera/loop/backend.h"

namespace tessera::loop {

/// One micro-batch of a step.
struct MicroBatch {
  int64_t index = 0;    // in the step
  int64_t samples = 1;  // of the whole step: what the sum of losses is divided by
  bool last = true;
};

/// What was loaded for one.
struct Loaded {
  bool given_up = false;  // data::Batch::given_up
  int64_t samples = 0;    // data::Batch::step_size
};

/// load(loader) -> Loaded takes this rank's next micro-batch from the loader; null: none is to come, the rank
/// only helps others. Then pass(MicroBatch, next) passes it; `next`: where the micro-batch after it comes
/// from, or null.
template <typename Load, typename Pass>
StepSamples one_by_one(data::TrainLoader& loader, int64_t micro_batches, const Load& load, const Pass& pass) {
  StepSamples step;
  for (int64_t i = 0; i < micro_batches; ++i) {
    data::TrainLoader* const from = step.given_up ? nullptr : &loader;  // after giving up, ask for no more
    const Loaded loaded = load(from);
    step.given_up = step.given_up || loaded.given_up;
    if (!step.given_up) step.samples = loaded.samples;
    pass(MicroBatch{i, step.samples, i + 1 == micro_batches}, step.given_up ? nullptr : from);
  }
  return step;
}

}  // namespace tessera::loop
