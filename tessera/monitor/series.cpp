// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/series.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera::monitor {
namespace {

// Mean of the finite values within `radius` of each. At the ends the window shrinks with the shorter side,
// down to half of `radius`: a bend is followed, a single last value is not.
std::vector<double> moving_average(const std::vector<double>& values, size_t radius) {
  const size_t n = values.size();
  std::vector<double> sums(n + 1, 0.0), counts(n + 1, 0.0), out(n);
  for (size_t i = 0; i < n; ++i) {
    const bool finite = std::isfinite(values[i]);
    sums[i + 1] = sums[i] + (finite ? values[i] : 0.0);
    counts[i + 1] = counts[i] + (finite ? 1.0 : 0.0);
  }
  for (size_t i = 0; i < n; ++i) {
    const size_t reach = std::max(std::min({radius, i, n - 1 - i}), radius / 2);
    const size_t first = i - std::min(reach, i), end = std::min(i + reach, n - 1) + 1;
    out[i] = std::isfinite(values[i]) ? (sums[end] - sums[first]) / (counts[end] - counts[first])
                                      : std::numeric_limits<double>::quiet_NaN();
  }
  return out;
}

}  // namespace

Points smooth(const Points& points) {
  const size_t n = points.y.size();
  if (n < 20) return points;
  const size_t radius = std::max<size_t>(n / 50, 1);
  return {points.x, moving_average(moving_average(points.y, radius), radius)};
}

Points thin(const Points& points, size_t most) {
  const size_t n = points.x.size();
  if (n <= most) return points;
  const size_t stretches = std::max<size_t>(most / 2, 1);
  Points out;
  const auto keep = [&](size_t i) {
    out.x.push_back(points.x[i]);
    out.y.push_back(points.y[i]);
  };
  for (size_t s = 0; s < stretches; ++s) {
    const size_t first = s * n / stretches, end = (s + 1) * n / stretches;
    size_t low = first, high = first;
    for (size_t i = first; i < end; ++i) {
      // A comparison with NaN is false: the first finite value must replace one.
      if (points.y[i] < points.y[low] || !std::isfinite(points.y[low])) low = i;
      if (points.y[i] > points.y[high] || !std::isfinite(points.y[high])) high = i;
    }
    keep(std::min(low, high));
    if (low != high) keep(std::max(low, high));
  }
  if (out.x.back() != points.x.back()) keep(n - 1);
  return out;
}

Axis make_axis(double low, double high, int count, bool whole) {
  if (!(high > low)) {
    const double pad = whole ? 1 : std::max(std::abs(low) * 0.1, 1e-12);
    if (!whole) low -= pad;
    high += pad;
  }
  const double rough = (high - low) / count;
  const double decade = std::pow(10, std::floor(std::log10(rough)));
  double spacing = 10 * decade;
  for (const double step : {1.0, 2.0, 5.0}) {
    if (step * decade >= rough * 0.85) {
      spacing = step * decade;
      break;
    }
  }
  if (whole) spacing = std::max(spacing, 1.0);
  Axis axis{low, high, spacing, {}};
  if (!whole) {
    axis.low = std::floor(low / spacing + 1e-9) * spacing;
    axis.high = std::ceil(high / spacing - 1e-9) * spacing;
  }
  for (double i = std::ceil(axis.low / spacing - 1e-9); i * spacing <= axis.high + spacing * 1e-9; ++i) {
    axis.ticks.push_back(i * spacing);
  }
  return axis;
}

void Range::add(double value) {
  if (!std::isfinite(value)) return;
  low = empty ? value : std::min(low, value);
  high = empty ? value : std::max(high, value);
  empty = false;
}

double quantile(std::vector<double> values, double share) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto index = static_cast<ptrdiff_t>(share * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + index, values.end());
  return values[static_cast<size_t>(index)];
}

}  // namespace tessera::monitor
