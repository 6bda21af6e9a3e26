// SPDX-License-Identifier: Apache-2.0
// The mean of a few measured times. Pure.
#pragma once

#include <algorithm>
#include <vector>

#include "tessera/base/interpolated_quantile.h"
#include "tessera/base/median.h"

namespace tessera {

/// What a sum of many such times has of each: the mean, since longer ones make a sum longer and their median
/// does not show it. Values above a limit count as the limit, since something interrupted them: the smaller
/// of five times the median and Q3 + 3 (Q3 - Q1), with the quartiles Q1 and Q3 (the outer fence of Tukey,
/// "Exploratory Data Analysis", 1977). The fence never limits fewer than five values. It also limits those of
/// a slower rank that has less than a quarter of the values. Requires: at least one value, none negative or
/// NaN.
inline double steady_mean(const std::vector<double>& values) {
  constexpr double kMost = 5, kFence = 3;
  const double first = interpolated_quantile(values, 0.25), third = interpolated_quantile(values, 0.75);
  const double most = std::min(kMost * median(values), third + kFence * (third - first));
  double sum = 0;
  for (const double value : values) sum += std::min(value, most);
  return sum / static_cast<double>(values.size());
}

}  // namespace tessera
