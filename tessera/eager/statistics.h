// SPDX-License-Identifier: Apache-2.0
// Statistics of a step's activations and gradients (run.statistics_every).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/eager/state.h"
#include "tessera/loop/named_sums.h"
#include "tessera/monitor/tensor_statistics.h"

namespace tessera::eager {

/// Of one step. Does nothing, on every rank, where `due` is false.
class StepStatistics {
 public:
  /// From now on the outputs of the segments are looked at.
  StepStatistics(TrainState& state, bool due);
  ~StepStatistics() { forward_done(true); }
  StepStatistics(const StepStatistics&) = delete;
  StepStatistics& operator=(const StepStatistics&) = delete;

  bool due() const { return due_; }
  /// The first micro-batch's forward is over: later ones, and what backward computes again, are not looked
  /// at. `has_samples`: false for a placeholder batch, which does not count.
  void forward_done(bool has_samples);
  /// With the reduced gradients, over all ranks; the same on every rank. `scale`: what they are multiplied
  /// with. Collective where due.
  std::vector<monitor::TensorStatistics> finish(double scale, loop::World& world);

 private:
  void add(int64_t order, const char* kind, const std::string& name, const at::Tensor& values);

  TrainState& state_;
  bool due_;
  std::vector<loop::NamedSums> sums_;
};

}  // namespace tessera::eager
