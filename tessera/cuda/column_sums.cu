// SPDX-License-Identifier: Apache-2.0
// Matrices side by side with the sums of their columns; and what all passes with such sums share: how they
// are divided among blocks, and the last of these sums.
#include "tessera/cuda/column_sums.cuh"
#include "tessera/cuda/kernels.h"
#include "tessera/cuda/launch.cuh"

namespace tessera::cuda {
namespace {

using device::ConcatSums;

// Blocks of a pass, if there are rows enough. 2048 are several for each place on a GPU (an H100 runs 528 at
// once), so that the last ones leave little idle. The number is the same for every GPU, since it fixes the
// order of the sums.
constexpr int64_t kSumBlocks = 2048;
constexpr int64_t kRowsOfThread = 8;  // at least, so that partial sums are few beside the matrix

/// A pack of columns of the result.
template <typename T, int kVector>
struct ConcatColumn {
  using P = Pack<T, kVector>;
  using Read = P;
  const P* from;
  P* to;
  int64_t from_packs, to_packs;  // of a row

  __device__ ConcatColumn(const ConcatSums& a, int64_t pack)
      : to(static_cast<P*>(a.result) + pack),
        from_packs(a.width / ConcatSums::kParts / kVector),
        to_packs(a.width / kVector) {
    const int64_t part = pack / from_packs;
    from = static_cast<const P*>(part == 0   ? a.part[0]
                                 : part == 1 ? a.part[1]
                                             : a.part[2]) +
           (pack - part * from_packs);
  }
  __device__ Read read(int64_t row) const { return from[row * from_packs]; }
  __device__ void finish(const Read& read, int64_t row, float (&sums)[kVector]) const {
    for (int k = 0; k < kVector; ++k) sums[k] += to_float(read.at[k]);
    to[row * to_packs] = read;
  }
};

constexpr int kConcatRows = 4;  // on their way to a thread

template <typename T, int kVector>
__global__ void __launch_bounds__(kSumThreads, 4) concat_sums_kernel(ConcatSums a) {
  sum_columns<kVector, kConcatRows, ConcatColumn<T, kVector>>(a);
}

/// A block for 32 columns, a warp for every 32nd part.
template <typename T>
__global__ void add_parts_kernel(Parts a) {
  __shared__ float sums[kWarp][kWarp + 1];
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t column = int64_t{blockIdx.x} * kWarp + lane;
  float sum = 0;
  if (column < a.columns) {
    for (int64_t part = warp; part < a.parts; part += kWarp) sum += a.partial[part * a.columns + column];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= a.columns) return;
  for (int i = 1; i < kWarp; ++i) sum += sums[i][lane];
  if (column < a.first_columns) {
    put(static_cast<T*>(a.first)[column], sum);
  } else {
    put(static_cast<T*>(a.second)[column - a.first_columns], sum);
  }
}

}  // namespace

int64_t sum_parts(int64_t rows, int64_t width) {
  constexpr int64_t kStrip = kWarp * kAccess / 2;  // columns of a block in bf16
  const int64_t most = kSumBlocks / divided_up(width, kStrip);
  const int64_t needed = divided_up(rows, kSumWarps * kRowsOfThread);
  return most < 1 ? 1 : needed < most ? needed : most;
}

void concat_sums(const ConcatSums& a, void* stream) {
  with_type(a.number, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kMost = kAccess / sizeof(T);
    if (packs_fit<T>(a.width / ConcatSums::kParts, a.part[0], a.part[1], a.part[2], a.result)) {
      launch(concat_sums_kernel<T, kMost>, sum_blocks<kMost>(a.rows, a.width), kSumThreads, a, stream);
    } else {
      launch(concat_sums_kernel<T, 1>, sum_blocks<1>(a.rows, a.width), kSumThreads, a, stream);
    }
  });
  add_parts(a.number, {a.partial, sum_parts(a.rows, a.width), a.width, a.width, a.sums, nullptr}, stream);
}

void add_parts(device::Number number, const Parts& a, void* stream) {
  with_type(number, [&](auto zero) {
    launch(add_parts_kernel<decltype(zero)>, divided_up(a.columns, kWarp), kMostThreads, a, stream);
  });
}

}  // namespace tessera::cuda
