// SPDX-License-Identifier: Apache-2.0
// The way of one micro-batch through the network and back, operation by operation or recorded.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/ops/device_graph.h"
#include "tessera/ops/host_made.h"
#include "tessera/recipe/recipe.h"
#include "tessera/train/device_input.h"
#include "tessera/train/state.h"

namespace tessera::train {

struct Pass {
  DeviceInput::Input& input;
  at::Tensor taught;           // the teacher's logits of it, or undefined
  bool mine = true;            // false: a stand-in, which takes part and does not count
  int64_t samples = 1;         // of the global batch
  bool last = true;            // micro-batch of the step
  uint64_t key = 0;            // of the step, for dropout
  std::function<void()> seen;  // called between forward and backward; may be null
};

/// Forward, loss, backward. Returns this micro-batch's part of the loss (a sum over its samples, divided by
/// pass.samples: micro-batches and ranks add up to the mean), a scalar where the state computes; its
/// gradients are the units' then. Collective.
at::Tensor run_pass(TrainState& state, const Pass& pass);

/// Passes as the recipe's run.cuda_graphs asks for: a kind of pass that came a few times in a row is recorded
/// with the device's DeviceGraph, and replayed where it comes again. Others (the short batch at an epoch's
/// end) go operation by operation. A replay's numbers are compared with those of the operations when it is
/// recorded; where they differ, or recording fails, a warning says so and nothing is recorded any more.
/// Memory of the units' gradients stays from then on; while it records there is a copy of them, and for a
/// unit at a time three in float64. One thread, whose current stream must not be the device's default one.
class RecordedPasses {
 public:
  /// `make`: of the state's device.
  explicit RecordedPasses(ops::MakeDeviceGraph make) : make_(make) {}

  /// run_pass(). What it returns is written over by the next call.
  at::Tensor run(TrainState& state, Pass pass);
  int64_t replays() const { return replays_; }
  /// Why nothing is recorded any more; empty: nothing is wrong.
  const std::string& fault() const { return fault_; }

 private:
  at::Tensor record(TrainState& state, const Pass& pass);
  at::Tensor replay(TrainState& state, const Pass& pass);
  /// Says fault_; nothing of a recording stays.
  void give_up(TrainState& state);

  /// What a recording depends on besides numbers.
  using Kind = std::vector<int64_t>;
  static Kind kind_of(const Pass& pass);

  const ops::MakeDeviceGraph make_;
  std::unique_ptr<ops::DeviceGraph> graph_;
  Kind recorded_, before_;
  int64_t in_a_row_ = 0;  // passes of the kind before_
  int64_t replays_ = 0;
  std::string fault_;
  // What the recording reads and writes.
  DeviceInput::Input input_;
  at::Tensor images_, taught_, loss_;
  ops::HostNumbers numbers_;
};

/// Why passes of such a run are not recorded though run.cuda_graphs asks for it; empty: they are.
std::string why_not_recorded(const recipe::Recipe& recipe, const plan::Plan& plan, at::Device device);

}  // namespace tessera::train
