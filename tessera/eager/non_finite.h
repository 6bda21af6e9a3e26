// SPDX-License-Identifier: Apache-2.0
// What a training step does about numbers that are not finite, and about spikes of the loss.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/eager/state.h"
#include "tessera/mesh/mesh.h"

namespace tessera::eager {

/// Numbers that end the run. The words say what to change; who knows the checkpoints adds where to go on.
class NonFinite : public UserError {
 public:
  using UserError::UserError;
};

/// Asks the state's loss scale and guard about the step under way, and tells them of it. "": use its
/// gradient. Else why it must be skipped, in one line. Errors: NonFinite where the run must end, with the
/// first bad tensor's name. Collective, and the same on every rank: loss and norm are.
std::string judge_step(TrainState& state, double loss, double gradient_norm, mesh::Mesh& mesh);

/// A model's buffers (running statistics) as they were before a step that may not be made. Local.
class BuffersBefore {
 public:
  explicit BuffersBefore(const TrainState& state);
  void put_back(TrainState& state) const;

 private:
  std::vector<at::Tensor> values_;
};

}  // namespace tessera::eager
