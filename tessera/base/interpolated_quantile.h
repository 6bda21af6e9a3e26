// SPDX-License-Identifier: Apache-2.0
// Quantiles of a few measurements. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tessera {

/// With linear interpolation between the two nearest values: numpy.quantile's default, type 7 of Hyndman and
/// Fan, "Sample Quantiles in Statistical Packages", 1996. Requires: at least one value, none NaN;
/// 0 <= share <= 1.
inline double interpolated_quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double at = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

}  // namespace tessera
