// SPDX-License-Identifier: Apache-2.0
// Clocks, and time that has passed. Safe from any thread.
#pragma once

#include <time.h>

#include <chrono>
#include <cstdint>

namespace tessera {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// What a clock of clock_gettime() shows. A signal handler may call it.
inline int64_t clock_nanoseconds(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}
inline double clock_seconds(clockid_t clock) { return 1e-9 * static_cast<double>(clock_nanoseconds(clock)); }

}  // namespace tessera
