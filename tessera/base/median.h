// SPDX-License-Identifier: Apache-2.0
// The middle of a few measurements. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tessera {

/// Of an even number of values the mean of the middle two. Requires: at least one value, none NaN.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace tessera
