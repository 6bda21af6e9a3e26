// SPDX-License-Identifier: Apache-2.0
#include "tessera/weights/channels.h"

#include <numeric>

#include "tessera/base/error.h"

namespace tessera::weights {

std::vector<float> adapt_channels(std::span<const float> kernels, int64_t from, int64_t to, int64_t area) {
  TESSERA_CHECK(from >= 1 && to >= 1 && area >= 1, from, ' ', to, ' ', area);
  const auto size = static_cast<size_t>(area), theirs = static_cast<size_t>(from);
  const auto ours = static_cast<size_t>(to), count = kernels.size() / (theirs * size);
  TESSERA_CHECK(kernels.size() == count * theirs * size, kernels.size());
  if (from == to) return {kernels.begin(), kernels.end()};
  const double share = to == 1 ? 1.0 : static_cast<double>(from) / static_cast<double>(to);
  std::vector<float> result(count * ours * size);
  for (size_t k = 0; k < count; ++k) {
    for (size_t c = 0; c < ours; ++c) {
      const float* first = kernels.data() + (k * theirs + c % theirs) * size;
      float* out = result.data() + (k * ours + c) * size;
      for (size_t i = 0; i < size; ++i) {
        double sum = first[i];
        for (size_t other = 1; to == 1 && other < theirs; ++other) sum += first[other * size + i];
        out[i] = static_cast<float>(sum * share);
      }
    }
  }
  return result;
}

std::string describe_channels(int64_t from, int64_t to) {
  return concat(from, " -> ", to, " channels, ",
                to == 1 ? "summed" : concat("repeated times ", from, '/', to));
}

std::vector<float> adapt_pixels(const std::vector<float>& of_channels) {
  if (of_channels.size() <= 1) return of_channels;
  const double sum = std::accumulate(of_channels.begin(), of_channels.end(), 0.0);
  return {static_cast<float>(sum / static_cast<double>(of_channels.size()))};
}

}  // namespace tessera::weights
