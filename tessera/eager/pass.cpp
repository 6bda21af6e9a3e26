// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/pass.h"

#include <ATen/ATen.h>

#include "tessera/eager/task.h"
#include "tessera/parallel/pass_span.h"

namespace tessera::eager {

namespace {

/// The loss of the pass's samples, as a share of the step's.
at::Tensor forward_pass(TrainState& state, const Pass& pass) {
  const parallel::PassSpan span({plan::Direction::kForward, state.pass.micro_batch}, 1);
  const at::Tensor logits = forward(state, pass.input, /*training=*/true, pass.key);
  if (pass.seen) pass.seen();
  const at::Tensor loss =
      state.task->loss_sum(logits, pass.input.batch, pass.teacher_logits) / static_cast<double>(pass.samples);
  return pass.has_samples ? loss : loss * 0.0;
}

}  // namespace

at::Tensor run_pass(TrainState& state, const Pass& pass) {
  const at::Tensor loss = forward_pass(state, pass);
  const parallel::PassSpan span({plan::Direction::kBackward, state.pass.micro_batch}, 1);
  const double scale = state.loss_scale.value();
  state.sharded->backward(scale == 1 ? loss : loss * scale, pass.last);
  return loss.detach();
}

}  // namespace tessera::eager
