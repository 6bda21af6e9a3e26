// SPDX-License-Identifier: Apache-2.0
// What ranks agree on once the gradients of a step are complete, and its update.
//
// On a CPU one all-reduce of five numbers, then the guard decides, then the optimizer's step. On another
// device the host's votes travel by themselves, without waiting for the device; loss and norm are added up
// over the ranks there. AdamW and Adam are queued before the host knows either (device_update.h); before
// other optimizers, and with offloaded state, the host reads both, once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "tessera/mesh/mesh.h"
#include "tessera/train/device_update.h"
#include "tessera/train/state.h"

namespace tessera::train {

/// What the host of a rank says at the end of a step; after the vote of all ranks: any, any, their sum.
struct Votes {
  bool stop = false;     // it was asked to stop
  bool stalled = false;  // its data did not come
  int64_t broken = 0;    // samples found broken since the last step
};

/// The end of one step.
class StepEnd {
 public:
  /// `loss`: this rank's part of the loss, a float64 scalar where the state computes. Collective.
  StepEnd(TrainState& state, at::Tensor loss, const Votes& mine, mesh::Mesh& mesh);
  /// `elsewhere`: do loss and gradients lie where the host waits for them? (For tests, on a CPU.)
  StepEnd(TrainState& state, at::Tensor loss, const Votes& mine, mesh::Mesh& mesh, bool elsewhere);

  /// Of all ranks.
  const Votes& votes() const { return votes_; }
  /// Loss and gradient norm over all ranks. Where the device decides, it makes the update as well.
  /// Collective; once, and not in a step that is stalled.
  StepNumbers numbers(double lr);
  /// The guard says that the step is used, or not: makes the update where the device did not. Collective.
  void finish(bool is_used, double lr);

 private:
  TrainState& state_;
  mesh::Mesh& mesh_;
  const bool elsewhere_;
  at::Tensor loss_;
  Votes votes_;
  StepNumbers numbers_;
};

/// Of a state whose device can decide alone: where it does not compute on a CPU, and the optimizer can be
/// queued; else null.
std::shared_ptr<DeviceUpdate> make_device_update(TrainState& state, mesh::Mesh& mesh);

/// A group of all ranks in which the device's tensors travel: one whose connections the units use already.
mesh::Group& all_ranks(const shard::ShardedModel& model, mesh::Mesh& mesh);

}  // namespace tessera::train
