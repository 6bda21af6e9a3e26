// SPDX-License-Identifier: Apache-2.0
// A model's buffers (running statistics) before a step that may not be made.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/eager/state.h"

namespace tessera::eager {

/// A copy of the buffers, until they are put back or it goes. Local.
class BuffersBefore {
 public:
  explicit BuffersBefore(const TrainState& state);
  void put_back(TrainState& state) const;

 private:
  std::vector<at::Tensor> values_;
};

}  // namespace tessera::eager
