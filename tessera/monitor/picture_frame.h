// SPDX-License-Identifier: Apache-2.0
// Where the parts of the picture of a step are, in pixels. Private to this room.
#pragma once

#include <cstdint>

namespace tessera::monitor {

inline constexpr double kWidth = 1000, kMargin = 16;
inline constexpr double kPlotLeft = 226, kPlotRight = 984;  // labels are left of it
inline constexpr int64_t kMostRanks = 32;                   // of a schedule, and of a stage's row in the mesh

}  // namespace tessera::monitor
