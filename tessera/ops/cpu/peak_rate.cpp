// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/peak_rate.h"

#include <algorithm>
#include <chrono>

#include "tessera/base/clock.h"
#include "tessera/ops/cpu/amx_gemm.h"
#include "tessera/ops/cpu/cpu.h"
#include "tessera/ops/cpu/vector_gemm.h"

namespace tessera::ops {

namespace {

using Loop = double (*)(long turns);

// Of products of `Element`s by fp32's instructions.
template <typename Element>
Loop loop_of_vectors() {
  if (cpu_has_avx512()) return vectors::Gemm<vectors::Avx512, Element, float>::resident_products;
  return cpu_has_avx2() ? vectors::Gemm<vectors::Avx2, Element, float>::resident_products : nullptr;
}

Loop loop_of(bool bf16) {
  if (!bf16) return loop_of_vectors<float>();
  if (cpu_has_amx()) return amx::Gemm::resident_products;
  if (cpu_favours_bf16()) return vectors::Gemm<vectors::Avx512, uint16_t>::resident_products;
  return loop_of_vectors<uint16_t>();
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
