// SPDX-License-Identifier: Apache-2.0
// The end of a training step in the memory of a device: loss and gradient norm over all ranks, whether the
// step is used, clipping and the optimizer's update. The host queues all of it without waiting, then reads
// three numbers once.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>

#include "tessera/loop/backend.h"
#include "tessera/mesh/mesh.h"
#include "tessera/monitor/numerics_guard.h"
#include "tessera/optim/optimizer.h"
#include "tessera/shard/sharded_model.h"

namespace tessera::eager {

/// One thread. prepare(), queue() and read() are called in this order in every step. decide() and update()
/// queue work of the device on memory that stays, and nothing else, so they can be recorded
/// (recorded_step.h).
class DeviceUpdate {
 public:
  /// Requires: optimizer.can_queue(). All arguments outlive this object. `group`: all ranks; tensors of
  /// `device` travel in it.
  DeviceUpdate(optim::Optimizer& optimizer, const shard::ShardedModel& model, mesh::Group& group,
               at::Device device);

  /// Copies what the host knows to the device. `loss`: this rank's part of the loss, a float64 scalar there.
  void prepare(const at::Tensor& loss, const loop::UpdateSettings& settings);
  /// Sums over the ranks; norm, clipping and whether the step is used, with the bits of shard::clip_scale and
  /// the answer of StepLimit::allows. Collective.
  void decide();
  /// Starts to copy the numbers to the host. Later work need not end before read() returns.
  void begin_read();
  /// Updates the master values if the step is used; else changes nothing. Local.
  void update();
  /// decide(), begin_read(), update(). Collective.
  void queue();
  /// Waits for the numbers.
  loop::StepValues read();
  /// What decide() found becomes NaN: a replay that leaves something out is found.
  void forget();
  /// Was the update made? After read().
  bool was_made() const { return was_made_; }

  /// What decide() found, as read() gets it: [3] float64: loss, norm, 1 if the step is used.
  const at::Tensor& found() const { return found_; }
  /// What gradients are multiplied with: [] float32.
  const at::Tensor& grad_scale() const { return scale_; }

 private:
  optim::Optimizer& optimizer_;
  const shard::ShardedModel& model_;
  mesh::Group& group_;
  const at::Tensor loss_;     // [] float64
  at::Tensor given_;          // [kSettings + the rule's numbers] float64; made by the first prepare()
  const at::Tensor scale_;    // [] float32: multiplies gradients
  const at::Tensor used_;     // [] float32
  const at::Tensor found_;    // [3] float64
  const at::Tensor on_host_;  // [3] float64, page-locked
  std::optional<c10::Event> copied_;
  bool was_made_ = false;
};

}  // namespace tessera::eager
