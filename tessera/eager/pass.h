// SPDX-License-Identifier: Apache-2.0
// The way of one micro-batch through the network and back, eagerly. As CUDA graphs: recorded_step.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "tessera/eager/device_input.h"
#include "tessera/eager/state.h"

namespace tessera::eager {

struct Pass {
  DeviceInput::Input& input;
  at::Tensor teacher_logits;   // the teacher's logits of it, or undefined
  bool has_samples = true;     // false: a placeholder batch, which takes part and does not count
  int64_t samples = 1;         // of the global batch
  bool first = true;           // micro-batch of the step
  bool last = true;            // micro-batch of the step
  uint64_t key = 0;            // of the step, for dropout
  std::function<void()> seen;  // called between forward and backward; may be null
};

/// Forward, loss, backward. Returns this micro-batch's part of the loss (a sum over its samples, divided by
/// pass.samples: micro-batches and ranks add up to the mean), a scalar where the state computes; its
/// gradients are the units' then, added to those of earlier micro-batches. Collective.
at::Tensor run_pass(TrainState& state, const Pass& pass);

}  // namespace tessera::eager
