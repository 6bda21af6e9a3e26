// SPDX-License-Identifier: Apache-2.0
// A line chart as inline SVG, with axes as text beside it: text keeps its size at any width. Pure.
#pragma once

#include <string>
#include <vector>

#include "tessera/monitor/series.h"

namespace tessera::monitor {

struct Curve {
  std::string name;    // in legend and read-out
  std::string colour;  // "blue", "orange", "green", "grey"
  enum Style { kLine, kFaint, kDots, kArea } style = kLine;
  Points points;
};

struct Chart {
  std::string title, unit;
  std::string note;  // below the chart; may be empty
  std::vector<Curve> curves;
  bool from_zero = false;
  double top = 0;              // values above are cut off; 0: none are
  double epochs_per_step = 0;  // for the read-out
  double last_step = 0;
  std::string across = "steps";  // what x counts
};

/// The chart as a `<figure>`; nothing where no curve has a finite point. Curves are thinned.
std::string render(const Chart& chart);

}  // namespace tessera::monitor
