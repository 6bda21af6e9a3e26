// SPDX-License-Identifier: Apache-2.0
// The end of a training step: ranks agree on loss, gradient norm and votes, then the parameters are updated.
//
// On a CPU: one all-reduce of five values, then the guard decides, then the optimizer's step.
// On a GPU: the hosts' votes are exchanged without waiting for the GPU; loss and norm are summed over the
// ranks on the GPU. AdamW and Adam are queued before the host knows loss and norm (device_update.h). Before
// other optimizers, and with offloaded state, the host reads both values once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "tessera/eager/device_update.h"
#include "tessera/eager/state.h"
#include "tessera/loop/backend.h"
#include "tessera/mesh/mesh.h"

namespace tessera::eager {

/// The end of one step.
class StepEnd {
 public:
  /// `loss`: this rank's part of the loss, a float64 scalar on the state's device. Collective.
  StepEnd(TrainState& state, at::Tensor loss, const loop::Votes& mine, mesh::Mesh& mesh);
  /// `elsewhere`: treat loss and gradients as on a device that the host must wait for. For tests on a CPU.
  StepEnd(TrainState& state, at::Tensor loss, const loop::Votes& mine, mesh::Mesh& mesh, bool elsewhere);

  /// The combined votes of all ranks.
  const loop::Votes& votes() const { return votes_; }
  /// Loss and gradient norm over all ranks. With a DeviceUpdate this also updates the parameters.
  /// Collective. Call it once, and not in a stalled step.
  loop::StepValues values(const loop::UpdateSettings& settings);
  /// Updates the parameters, unless values() did; `is_used` is the guard's decision. Collective.
  void finish(bool is_used, const loop::UpdateSettings& settings);

 private:
  TrainState& state_;
  mesh::Mesh& mesh_;
  const bool elsewhere_;
  at::Tensor loss_;
  loop::Votes votes_;
  loop::StepValues values_;
};

/// The update that a device makes without the host. Null on a CPU, and for optimizers that cannot be queued.
std::shared_ptr<DeviceUpdate> make_device_update(TrainState& state, mesh::Mesh& mesh);

/// The group of all ranks for tensors of the device: that of the units where they have one, which saves
/// connections.
mesh::Group& all_ranks(mesh::Mesh& mesh);

}  // namespace tessera::eager
