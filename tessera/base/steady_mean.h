// SPDX-License-Identifier: Apache-2.0
// The mean of a few measured times. Pure.
#pragma once

#include <algorithm>
#include <vector>

#include "tessera/base/median.h"

namespace tessera {

/// What a sum of many such times has of each: the mean, since longer ones make a sum longer and their median
/// does not show it. One above five times the median counts as that: a machine that stood still for a while.
/// Requires: at least one value, none negative or NaN.
inline double steady_mean(const std::vector<double>& values) {
  constexpr double kMost = 5;
  const double most = kMost * median(values);
  double sum = 0;
  for (const double value : values) sum += std::min(value, most);
  return sum / static_cast<double>(values.size());
}

}  // namespace tessera
