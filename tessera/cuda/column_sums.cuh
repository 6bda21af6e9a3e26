// SPDX-License-Identifier: Apache-2.0
// Passes over a matrix that also give the sums of its columns. A thread keeps one pack of columns and goes
// down the rows, so its sums stay in registers. A block adds those of its warps and writes a row of
// `partial`; add_parts() adds these rows. The order of all sums is fixed, so the result is bitwise the same
// each time.
#pragma once

#include "tessera/cuda/kernels.h"
#include "tessera/cuda/launch.cuh"

namespace tessera::cuda {

constexpr int kSumThreads = 256;  // of a block: 8 warps, each of which has a row of 32 packs at a time
constexpr int kSumWarps = kSumThreads / kWarp;

/// Blocks for a matrix of this size, kVector columns in a pack.
template <int kVector>
int64_t sum_blocks(int64_t rows, int64_t width) {
  return divided_up(width, kWarp * kVector) * sum_parts(rows, width);
}

/// For each pack of columns of a.width: makes Column(a, pack), reads every row, column.read(row), and
/// finishes it, column.finish(read, row, sums), which adds the pack's values to `sums`. kAtOnce rows are read
/// before the first is finished, so that enough loads are on their way. Requires: sum_blocks<kVector>(a.rows,
/// a.width) blocks of kSumThreads threads; a.width is a multiple of kVector; a.partial is [sum_parts(a.rows,
/// a.width), a.width].
template <int kVector, int kAtOnce, typename Column, typename Arguments>
__device__ void sum_columns(const Arguments& a) {
  __shared__ float of_warps[kSumWarps][kVector][kWarp + 1];
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t packs = a.width / kVector, strips = (packs + kWarp - 1) / kWarp;
  const int64_t strip = blockIdx.x % strips, part = blockIdx.x / strips, parts = gridDim.x / strips;
  const int64_t pack = strip * kWarp + lane, step = parts * kSumWarps;
  float sums[kVector] = {};
  if (pack < packs) {
    const Column column(a, pack);
    int64_t row = part * kSumWarps + warp;
    for (; row + (kAtOnce - 1) * step < a.rows; row += kAtOnce * step) {
      typename Column::Read read[kAtOnce];
      for (int i = 0; i < kAtOnce; ++i) read[i] = column.read(row + i * step);
      for (int i = 0; i < kAtOnce; ++i) column.finish(read[i], row + i * step, sums);
    }
    for (; row < a.rows; row += step) column.finish(column.read(row), row, sums);
  }
  for (int k = 0; k < kVector; ++k) of_warps[warp][k][lane] = sums[k];
  __syncthreads();
  for (int64_t i = threadIdx.x; i < kWarp * kVector; i += kSumThreads) {
    const int64_t column = strip * kWarp * kVector + i;
    if (column >= a.width) return;
    float sum = 0;
    for (int w = 0; w < kSumWarps; ++w) sum += of_warps[w][i % kVector][i / kVector];
    a.partial[part * a.width + column] = sum;
  }
}

/// The sums of the columns of `partial` [parts, columns], rounded to `number`: to `first` those of the first
/// `first_columns`, to `second` those of the others.
struct Parts {
  const float* partial;
  int64_t parts, columns, first_columns;
  void *first, *second;
};
void add_parts(device::Number number, const Parts& a, void* stream);

}  // namespace tessera::cuda
