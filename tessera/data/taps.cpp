// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/taps.h"

#include <algorithm>
#include <cmath>

namespace tessera::data {
namespace {

double bilinear(double x) { return std::max(0.0, 1.0 - std::abs(x)); }

// Keys' cubic with a = -1/2.
double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
  if (x < 2.0) return ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a;
  return 0.0;
}

}  // namespace

int64_t Taps::begin() const { return *std::min_element(first.begin(), first.end()); }

int64_t Taps::end() const {
  int64_t last = 0;
  for (size_t i = 0; i < first.size(); ++i) last = std::max<int64_t>(last, first[i] + counts[i]);
  return last;
}

void Taps::shift_to_zero() {
  const auto by = static_cast<int32_t>(begin());
  for (int32_t& input : first) input -= by;
}

void Taps::mirror() {
  std::reverse(first.begin(), first.end());
  std::reverse(counts.begin(), counts.end());
  for (int64_t a = 0, b = outputs() - 1; a < b; ++a, --b) {
    std::swap_ranges(weights.begin() + a * stride, weights.begin() + (a + 1) * stride,
                     weights.begin() + b * stride);
  }
}

Taps make_taps(const Dimension& d, Filter filter) {
  const double scale = d.length / static_cast<double>(d.out);
  const double stretch = std::max(scale, 1.0);  // a filter narrower than one input would skip inputs
  const double inverse = 1.0 / stretch;
  const double support = (filter == Filter::kBicubic ? 2.0 : 1.0) * stretch;
  Taps taps;
  taps.stride = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  const auto count = static_cast<size_t>(d.count);
  taps.weights.resize(static_cast<size_t>(taps.stride) * count);
  taps.first.resize(count);
  taps.counts.resize(count);
  std::vector<double> raw(static_cast<size_t>(taps.stride));
  for (size_t i = 0; i < count; ++i) {
    const double center = d.from + (static_cast<double>(d.begin) + static_cast<double>(i) + 0.5) * scale;
    const int64_t low = std::max<int64_t>(0, static_cast<int64_t>(center - support + 0.5));
    const int64_t high = std::min(d.inputs, static_cast<int64_t>(center + support + 0.5));
    double sum = 0.0;
    for (int64_t k = low; k < high; ++k) {
      const double x = (static_cast<double>(k) - center + 0.5) * inverse;
      sum += raw[static_cast<size_t>(k - low)] = filter == Filter::kBicubic ? bicubic(x) : bilinear(x);
    }
    int32_t* weights = taps.weights.data() + static_cast<int64_t>(i) * taps.stride;
    for (int64_t k = 0; k < high - low; ++k) {
      const double scaled = raw[static_cast<size_t>(k)] / sum * (1 << kFractionBits);
      weights[k] = static_cast<int32_t>(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
    }
    taps.first[i] = static_cast<int32_t>(low);
    taps.counts[i] = static_cast<int32_t>(high - low);
  }
  return taps;
}

}  // namespace tessera::data
