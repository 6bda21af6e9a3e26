// SPDX-License-Identifier: Apache-2.0
// The linear map of a resize along one dimension. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::weights {

/// One row: an output is the sum of the inputs from `first` on, each times its weight.
struct ResizeRow {
  int64_t first = 0;
  std::vector<double> weights;  // of sum 1
};

/// Antialiased, Keys' a = -1/2: torch's interpolate(mode="bicubic", antialias=True). Requires: from, to >= 1.
std::vector<ResizeRow> bicubic_rows(int64_t from, int64_t to);
/// Corners stay corners: scipy.ndimage.zoom(order=1). Requires: from, to >= 1.
std::vector<ResizeRow> linear_rows(int64_t from, int64_t to);

}  // namespace tessera::weights
