// SPDX-License-Identifier: Apache-2.0
#include "tessera/weights/positions.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/weights/resize_matrix.h"

namespace tessera::weights {

Resampling resampling_of(const std::string& name) {
  if (name == "bicubic") return Resampling::kBicubic;
  if (name == "linear") return Resampling::kLinear;
  const std::string near = nearest(name, {"bicubic", "linear"});
  user_error({.where = "weights.positions",
              .problem = concat("the resampling is \"", escape(name), '"'),
              .expected = "bicubic or linear",
              .hint = near.empty() ? "" : concat("did you mean \"", near, "\"?")});
}

std::string to_string(Resampling how) { return how == Resampling::kBicubic ? "bicubic" : "linear"; }

std::vector<float> resample_positions(std::span<const float> rows, int64_t from, int64_t to, int64_t width,
                                      Resampling how) {
  TESSERA_CHECK(from >= 1 && to >= 1 && rows.size() == static_cast<size_t>(from * from * width), from, to);
  if (from == to) return {rows.begin(), rows.end()};
  const auto outputs = how == Resampling::kBicubic ? bicubic_rows(from, to) : linear_rows(from, to);
  const auto columns = static_cast<size_t>(width);
  // Along x, then along y; sums in double, so that the order of the two does not show.
  std::vector<double> wide(static_cast<size_t>(from * to) * columns);
  for (int64_t y = 0; y < from; ++y) {
    for (int64_t x = 0; x < to; ++x) {
      const ResizeRow& output = outputs[static_cast<size_t>(x)];
      double* sum = wide.data() + static_cast<size_t>(y * to + x) * columns;
      for (size_t k = 0; k < output.weights.size(); ++k) {
        const float* row =
            rows.data() + static_cast<size_t>(y * from + output.first + static_cast<int64_t>(k)) * columns;
        for (size_t c = 0; c < columns; ++c) sum[c] += output.weights[k] * row[c];
      }
    }
  }
  std::vector<float> result(static_cast<size_t>(to * to) * columns);
  std::vector<double> sum(static_cast<size_t>(to) * columns);
  for (int64_t y = 0; y < to; ++y) {
    const ResizeRow& output = outputs[static_cast<size_t>(y)];
    std::fill(sum.begin(), sum.end(), 0.0);
    for (size_t k = 0; k < output.weights.size(); ++k) {
      const double* row =
          wide.data() + static_cast<size_t>(output.first + static_cast<int64_t>(k)) * sum.size();
      for (size_t c = 0; c < sum.size(); ++c) sum[c] += output.weights[k] * row[c];
    }
    for (size_t c = 0; c < sum.size(); ++c)
      result[static_cast<size_t>(y) * sum.size() + c] = static_cast<float>(sum[c]);
  }
  return result;
}

}  // namespace tessera::weights
