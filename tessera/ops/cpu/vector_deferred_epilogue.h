// SPDX-License-Identifier: Apache-2.0
// Sums of a product that its epilogue still waits for. Private to kernels; like vectors.h without any
// standard header.
//
// Note [Put off]: the epilogue of a block needs few multiplications, and a product needs nothing else. So it
// is not applied when the block's sums are complete, but a vector at a time while those of the next are added
// up.
#pragma once

#include "tessera/ops/cpu/vector_finish.h"

namespace tessera::ops::vectors {
namespace {

// Of a block of sums in registers.
constexpr int64_t kRows = CompiledFor::kRows, kColumns = CompiledFor::kColumns;

struct alignas(64) Block {
  float c[kRows * kColumns];
};

/// What of a block is not finished: `left` vectors of 16 columns, row by row.
template <typename T>
struct DeferredEpilogue {
  const Epilogue<T>* epilogue;
  int64_t left = 0;
  const float* c = nullptr;       // the next of them
  int64_t at = 0, column = 0;     // in the result
  int64_t index = 0, across = 0;  // in its row, which has so many
  int64_t to_next_row = 0;        // in the result, from behind the last of a row
};

template <typename T>
inline void finish_next(DeferredEpilogue<T>& p) {
  finish(*p.epilogue, load(p.c), p.at, p.column, AllLanes());
  --p.left;
  p.c += 16;
  p.at += 16;
  p.column += 16;
  if (++p.index < p.across) return;
  p.index = 0;
  p.c += kColumns - 16 * p.across;
  p.at += p.to_next_row;
  p.column -= 16 * p.across;
}

template <typename T>
inline void finish_all(DeferredEpilogue<T>& p) {
  while (p.left > 0) finish_next(p);
}

/// Leaves a block to be finished, `rows` rows of `width` columns from `row` and `column` of the result on,
/// which has `columns`: whole vectors. A last vector that is not whole is finished here.
template <typename T>
inline void defer_epilogue(DeferredEpilogue<T>& p, const Block& block, int64_t row, int64_t rows,
                           int64_t column, int64_t width, int64_t columns) {
  const int64_t across = width / 16, at = row * columns + column;
  if (width % 16 != 0) {
    const Mask rest = first_lanes(width % 16);
    for (int64_t i = 0; i < rows; ++i) {
      finish(*p.epilogue, load(block.c + i * kColumns + 16 * across), at + i * columns + 16 * across,
             column + 16 * across, rest);
    }
  }
  p.left = rows * across;
  p.c = block.c;
  p.at = at;
  p.column = column;
  p.index = 0;
  p.across = across;
  p.to_next_row = columns - 16 * across;
}

}  // namespace
}  // namespace tessera::ops::vectors
