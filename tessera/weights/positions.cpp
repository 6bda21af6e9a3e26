#include "tessera/weights/positions.h"

#include <cmath>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/data/taps.h"

namespace tessera::weights {
namespace {

/// One output of a dimension: inputs from `first` on, each times its weight.
struct Output {
  int64_t first = 0;
  std::vector<double> weights;
};

std::vector<Output> bicubic(int64_t from, int64_t to) {
  const data::Taps taps = data::make_taps(
      {.inputs = from, .from = 0, .length = static_cast<double>(from), .out = to, .begin = 0, .count = to},
      data::Filter::kBicubic);
  std::vector<Output> outputs(static_cast<size_t>(to));
  for (size_t i = 0; i < outputs.size(); ++i) {
    outputs[i].first = taps.first[i];
    const int32_t* weights = taps.of(static_cast<int64_t>(i));
    double sum = 0;  // of the rounded weights: divided by, what is constant stays so exactly
    for (int32_t k = 0; k < taps.counts[i]; ++k) sum += weights[k];
    for (int32_t k = 0; k < taps.counts[i]; ++k) outputs[i].weights.push_back(weights[k] / sum);
  }
  return outputs;
}

std::vector<Output> linear(int64_t from, int64_t to) {
  std::vector<Output> outputs(static_cast<size_t>(to));
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

}  // namespace

Resampling resampling_of(const std::string& name) {
  if (name == "bicubic") return Resampling::kBicubic;
  if (name == "linear") return Resampling::kLinear;
  const std::string near = nearest(name, {"bicubic", "linear"});
  user_error("weights.positions", "bicubic or linear: found \"", escape(name), '"',
             near.empty() ? "" : " (did you mean \"" + near + "\"?)");
}

std::string to_string(Resampling how) { return how == Resampling::kBicubic ? "bicubic" : "linear"; }

std::vector<float> resample_positions(std::span<const float> rows, int64_t from, int64_t to, int64_t width,
                                      Resampling how) {
  TESSERA_CHECK(from >= 1 && to >= 1 && rows.size() == static_cast<size_t>(from * from * width), from, to);
  if (from == to) return {rows.begin(), rows.end()};
  const auto outputs = how == Resampling::kBicubic ? bicubic(from, to) : linear(from, to);
  const auto columns = static_cast<size_t>(width);
  // Along x, then along y; sums in double, so that the order of the two does not show.
  std::vector<double> wide(static_cast<size_t>(from * to) * columns);
  for (int64_t y = 0; y < from; ++y) {
    for (int64_t x = 0; x < to; ++x) {
      const Output& output = outputs[static_cast<size_t>(x)];
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
    const Output& output = outputs[static_cast<size_t>(y)];
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
