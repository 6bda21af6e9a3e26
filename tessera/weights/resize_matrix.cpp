// SPDX-License-Identifier: Apache-2.0
#include "tessera/weights/resize_matrix.h"

#include <algorithm>

#include "tessera/data/taps.h"

namespace tessera::weights {

std::vector<ResizeRow> bicubic_rows(int64_t from, int64_t to) {
  const data::Taps taps = data::make_taps(
      {.inputs = from, .from = 0, .length = static_cast<double>(from), .out = to, .begin = 0, .count = to},
      data::Filter::kBicubic);
  std::vector<ResizeRow> outputs(static_cast<size_t>(to));
  for (size_t i = 0; i < outputs.size(); ++i) {
    outputs[i].first = taps.first[i];
    const int32_t* weights = taps.of(static_cast<int64_t>(i));
    double sum = 0;  // of the rounded weights: divided by, what is constant stays so exactly
    for (int32_t k = 0; k < taps.counts[i]; ++k) sum += weights[k];
    for (int32_t k = 0; k < taps.counts[i]; ++k) outputs[i].weights.push_back(weights[k] / sum);
  }
  return outputs;
}

std::vector<ResizeRow> linear_rows(int64_t from, int64_t to) {
  std::vector<ResizeRow> outputs(static_cast<size_t>(to));
  const double step = to > 1 ? static_cast<double>(from - 1) / static_cast<double>(to - 1) : 0.0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const double place = static_cast<double>(i) * step;
    const auto first = std::min(static_cast<int64_t>(place), from - 1);
    const double beyond = place - static_cast<double>(first);
    outputs[i].first = first;
    outputs[i].weights = {1.0 - beyond};
    if (first + 1 < from && beyond > 0) outputs[i].weights.push_back(beyond);
  }
  return outputs;
}

}  // namespace tessera::weights
