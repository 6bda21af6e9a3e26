// How a thread comes to its rows (Note [Turns] in avx512_gemm.h). Private to kernels for AVX-512; like
// avx512_math.h without any standard header.
#pragma once

#include "tessera/ops/avx512_gemm.h"
#include "tessera/ops/avx512_pack.h"

namespace tessera::ops::avx512 {
namespace {

constexpr int64_t kGroup = 256;  // the most rows at a time

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
}  // namespace tessera::ops::avx512
