// SPDX-License-Identifier: Apache-2.0
// The mean of a few measured times. Pure.
#pragma once

#include <algorithm>
#include <vector>

#include "tessera/base/median.h"
#include "tessera/base/quantile.h"

namespace tessera {

/// What a sum of many such times has of each: the mean, since longer ones make a sum longer and their median
/// does not show it. But one that lies far out, behind the third quartile by more than three times the
/// distance between the quartiles (the outer fence of Tukey, "Exploratory Data Analysis", 1977), or above
/// five times the median, counts as that limit: another program had the core, or the machine stood still for
/// a while. Requires: at least one value, none negative or NaN.
inline double steady_mean(const std::vector<double>& values) {
  constexpr double kMost = 5, kFence = 3;
  const double first = quantile(values, 0.25), third = quantile(values, 0.75);
  const double most = std::min(kMost * median(values), third + kFence * (third - first));
  double sum = 0;
  for (const double value : values) sum += std::min(value, most);
  return sum / static_cast<double>(values.size());
}

}  // namespace tessera
