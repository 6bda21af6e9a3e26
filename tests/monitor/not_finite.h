// SPDX-License-Identifier: Apache-2.0
// Numbers that are none.
#pragma once

#include <limits>

namespace tessera::monitor {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace tessera::monitor
