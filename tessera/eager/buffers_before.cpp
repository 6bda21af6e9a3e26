// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/buffers_before.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace tessera::eager {

BuffersBefore::BuffersBefore(const TrainState& state) {
  for (const auto& [name, buffer] : state.sharded->buffers()) values_.push_back(buffer.clone());
}

void BuffersBefore::put_back(TrainState& state) const {
  const at::NoGradGuard no_grad;
  const auto buffers = state.sharded->buffers();
  for (size_t i = 0; i < values_.size(); ++i) at::Tensor(buffers[i].second).copy_(values_[i]);
}

}  // namespace tessera::eager
