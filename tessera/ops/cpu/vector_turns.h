// SPDX-License-Identifier: Apache-2.0
// How a thread comes to its rows (Note [Turns] in vector_gemm.h). Private to kernels; like vectors.h without
// any standard header.
#pragma once

#include "tessera/ops/cpu/vector_gemm.h"
#include "tessera/ops/cpu/vector_math.h"

namespace tessera::ops::vectors {
namespace {

// The most rows at a time; a multiple of those that a product has in registers.
constexpr int64_t kGroup = 256 / CompiledFor::kRows / 8 * 8 * CompiledFor::kRows;

struct Rows {
  int64_t first, last;
};

// The next rows of a chunk for this thread, all but the last of them a multiple of `least`; none: all are
// taken.
inline Rows take_rows(const Turns& turns, int64_t chunk, int64_t rows, int64_t least) {
  int64_t *taken = turns.taken + chunk, first = __atomic_load_n(taken, __ATOMIC_RELAXED), last = rows;
  do {
    const int64_t share = turns.threads == 1 ? kGroup : (rows - first) / (4 * turns.threads) / least * least;
    last = min_of(rows, first + (share < least ? least : min_of(share, kGroup)));
  } while (first < rows &&
           !__atomic_compare_exchange_n(taken, &first, last, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return {first, last};
}

}  // namespace
}  // namespace tessera::ops::vectors
