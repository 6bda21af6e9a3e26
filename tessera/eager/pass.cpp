// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/pass.h"

#include <ATen/ATen.h>

#include "tessera/eager/task.h"

namespace tessera::eager {

at::Tensor run_pass(TrainState& state, const Pass& pass) {
  const at::Tensor logits = forward(state, pass.input, /*training=*/true, pass.key);
  if (pass.seen) pass.seen();
  at::Tensor loss =
      state.task->loss_sum(logits, pass.input.batch, pass.teacher_logits) / static_cast<double>(pass.samples);
  if (!pass.has_samples) loss = loss * 0.0;
  const double scale = state.loss_scale.value();
  state.sharded->backward(scale == 1 ? loss : loss * scale, pass.last);
  return loss.detach();
}

}  // namespace tessera::eager
