// SPDX-License-Identifier: Apache-2.0
#include "tessera/loop/step_pace.h"

#include <algorithm>

namespace tessera::loop {

void StepPace::add(double seconds) {
  if (steps_.size() == kSteps) return;
  steps_.push_back(seconds);
  if (steps_.size() == kSteps && when_known_) when_known_(*this->seconds());
}

void StepPace::end() const {
  if (steps_.size() >= 2 && steps_.size() < kSteps && when_known_) when_known_(*seconds());
}

std::optional<double> StepPace::seconds() const {
  const size_t skipped = std::min(kWarmUp, steps_.size() / 2);
  std::vector<double> counted(steps_.begin() + static_cast<std::ptrdiff_t>(skipped), steps_.end());
  if (counted.empty()) return std::nullopt;
  const auto middle = counted.begin() + static_cast<std::ptrdiff_t>(counted.size() / 2);
  std::nth_element(counted.begin(), middle, counted.end());
  if (counted.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(counted.begin(), middle)) / 2;
}

}  // namespace tessera::loop
