#include "tessera/ops/peak_rate.h"

#include <algorithm>
#include <chrono>

#include "tessera/base/clock.h"
#include "tessera/ops/amx_gemm.h"
#include "tessera/ops/avx512_gemm.h"
#include "tessera/ops/cpu.h"

namespace tessera::ops {

namespace {

using Loop = double (*)(long turns);

Loop loop_of(bool bf16) {
  if (!bf16) return cpu_has_avx512() ? avx512::Gemm<float>::resident_products : nullptr;
  if (cpu_has_amx()) return amx::Gemm::resident_products;
  if (!cpu_has_avx512()) return nullptr;
  return cpu_favours_bf16() ? avx512::Gemm<uint16_t>::resident_products
                            : avx512::Gemm<uint16_t, float>::resident_products;
}

}  // namespace

double peak_rate(bool bf16, double seconds) {
  const Loop loop = loop_of(bf16);
  if (loop == nullptr) return 0;
  constexpr long kTurns = 20'000;
  const auto begin = std::chrono::steady_clock::now();
  double best = 0;
  do {
    const auto start = std::chrono::steady_clock::now();
    const double operations = loop(kTurns);
    best = std::max(best, operations / std::max(seconds_since(start), 1e-9));
  } while (seconds_since(begin) < seconds);
  return best;
}

}  // namespace tessera::ops
