#include "tessera/ops/peak_rate.h"

#include <algorithm>
#include <chrono>

#include "tessera/base/clock.h"
#include "tessera/ops/cpu.h"
#include "tessera/ops/resident_loops.h"

namespace tessera::ops {

double peak_rate(bool bf16, double seconds) {
  if (bf16 ? !cpu_has_amx() : !cpu_has_avx512()) return 0;
  constexpr long kTurns = 20'000;
  const auto begin = std::chrono::steady_clock::now();
  double best = 0;
  do {
    const auto start = std::chrono::steady_clock::now();
    const double operations = bf16 ? amx::resident_products(kTurns) : avx512::resident_products(kTurns);
    best = std::max(best, operations / std::max(seconds_since(start), 1e-9));
  } while (seconds_since(begin) < seconds);
  return best;
}

}  // namespace tessera::ops
