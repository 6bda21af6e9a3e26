// SPDX-License-Identifier: Apache-2.0
// What a step usually takes, once enough of them were made. One thread.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

namespace tessera::loop {

class StepPace {
 public:
  static constexpr size_t kSteps = 20;  // that are looked at
  static constexpr size_t kWarmUp = 5;  // of them, that do not count if there are others
  /// `when_known`: called once, in the step after which the pace is known, or in end().
  explicit StepPace(std::function<void(double seconds)> when_known) : when_known_(std::move(when_known)) {}
  void add(double seconds);
  /// No more steps come: calls `when_known` if it was not called and there are two steps or more.
  void end() const;
  /// Median seconds of the first kSteps steps, or of those that were made; none without a step that counts.
  std::optional<double> seconds() const;

 private:
  std::function<void(double)> when_known_;
  std::vector<double> steps_;
};

}  // namespace tessera::loop
