// SPDX-License-Identifier: Apache-2.0
// Products by fp32's multiply-adds: a word is one k. Elements of bf16 are widened.
#include "tessera/ops/cpu/vector_math.h"

namespace tessera::ops::vectors {
namespace {

template <typename T>
inline Floats multiply_add(Floats sum, Words left, Words right, T) {
  return fmadd(as_floats(left), as_floats(right), sum);
}

template <typename T>
inline Words load_words(const T* p, int64_t count) {
  return as_words(load(p, first_lanes(count)));
}

// 16 rows x 16 columns of w; what lies outside is zero. `sum`: adds the columns' sums.
template <typename T>
inline void columns_of(const T* w, int64_t row_step, int64_t rows, Mask columns, Words (&r)[16],
                       Floats* sum) {
  for (int i = 0; i < 16; ++i) {
    const Floats row = i < rows ? load(w + i * row_step, columns) : zeros();
    if (sum != nullptr) *sum = *sum + row;
    r[i] = as_words(row);
  }
}

// 16 words of k x 32 columns of w, all of which exist, as two panels. `sums`: adds the columns' sums.
template <typename T>
inline void interleave_pair(const T* w, int64_t row_step, float* low, float* high, Floats* sums) {
  for (int i = 0; i < 16; ++i, w += row_step) {
    const Floats left = load(w), right = load(w + 16);
    store(low + 16 * i, left);
    store(high + 16 * i, right);
    if (sums == nullptr) continue;
    sums[0] = sums[0] + left;
    sums[1] = sums[1] + right;
  }
}

}  // namespace
}  // namespace tessera::ops::vectors

#include "tessera/ops/cpu/vector_blocks.h"

namespace tessera::ops::vectors {
template struct Gemm<CompiledFor, float>;
template struct Gemm<CompiledFor, uint16_t, float>;
}  // namespace tessera::ops::vectors
