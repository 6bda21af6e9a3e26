// SPDX-License-Identifier: Apache-2.0
// Curves as numbers: smoothing, thinning, ticks. Values may be NaN or infinite: such points are gaps. Pure.
#pragma once

#include <cstddef>
#include <vector>

namespace tessera::monitor {

struct Points {
  std::vector<double> x, y;  // x grows
};

/// Centred moving average over 1/25 of the points, applied twice: follows the curve without lag. The same
/// number of points; non-finite values take no part and stay gaps. Fewer than 20 points come back unchanged.
Points smooth(const Points& points);

/// At most `most` points (more by one or two): of each stretch the lowest and the highest, so that spikes
/// stay.
Points thin(const Points& points, size_t most);

struct Axis {
  double low = 0, high = 1;
  double spacing = 1;         // between ticks
  std::vector<double> ticks;  // within [low, high]
};

/// Round ticks, about `count` of them, and limits on ticks around [low, high]; `whole`: no ticks between
/// integers, and limits as given.
Axis make_axis(double low, double high, int count, bool whole);

struct Range {
  double low = 0, high = 0;
  bool empty = true;
  void add(double value);  // non-finite values are passed over
};

/// The value below which `share` of the finite values lie; NaN where there is none.
double quantile(std::vector<double> values, double share);

}  // namespace tessera::monitor
