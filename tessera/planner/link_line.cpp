// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/link_line.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"

namespace tessera::planner {

// With u = 1 / seconds and v = bytes / seconds of each sample, the sum of (latency * u + v / rate - 1)^2 is
// least where its two derivatives are zero.
void fit_line(LinkTimes* link) {
  constexpr double kHighestRate = 1e15;  // of messages whose time does not grow with their size
  double uu = 0, uv = 0, vv = 0, u_sum = 0, v_sum = 0;
  TESSERA_CHECK(!link->samples.empty());
  for (const auto& [bytes, seconds] : link->samples) {
    TESSERA_CHECK(bytes > 0 && seconds > 0, bytes, " bytes in ", seconds, " s");
    const double u = 1 / seconds, v = static_cast<double>(bytes) / seconds;
    uu += u * u;
    uv += u * v;
    vv += v * v;
    u_sum += u;
    v_sum += v;
  }
  const double determinant = uu * vv - uv * uv;
  double latency = 0, seconds_per_byte = v_sum / vv;
  if (determinant > 1e-12 * uu * vv) {
    const double free_latency = (u_sum * vv - v_sum * uv) / determinant;
    if (free_latency > 0) {
      latency = free_latency;
      seconds_per_byte = (v_sum * uu - u_sum * uv) / determinant;
    }
  }
  if (seconds_per_byte <= 0) latency = u_sum / uu;
  link->latency = latency;
  link->bytes_per_second = 1 / std::max(seconds_per_byte, 1 / kHighestRate);
  double squares = 0;
  for (const auto& [bytes, seconds] : link->samples) {
    const double line = latency + static_cast<double>(bytes) / link->bytes_per_second;
    squares += (line / seconds - 1) * (line / seconds - 1);
  }
  link->spread = std::sqrt(squares / static_cast<double>(link->samples.size()));
}

}  // namespace tessera::planner
