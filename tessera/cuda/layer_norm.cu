// SPDX-License-Identifier: Apache-2.0
// Layer normalisation: a block for a row, statistics in fp32. A thread reads packs of 16 bytes; the first of
// a row stays in its registers, which is all that it reads of rows with no more packs than the block has
// threads.
#include "tessera/cuda/column_sums.cuh"
#include "tessera/cuda/kernels.h"
#include "tessera/cuda/launch.cuh"

namespace tessera::cuda {
namespace {

using device::NormBackward, device::NormForward;

// Backward: threads of a block at most, where each has one pack of a row and where it may have several.
constexpr int kNarrowBlock = 256, kWideBlock = 512;
// Blocks of an SM that the compiler leaves registers for: 80 a thread, the most with which nothing of a
// narrow row is spilled to memory (64 spill, by `nvcc --resource-usage`).
constexpr int kNarrowBlocks = 3;
// Threads of all blocks of backward together. Each block adds up the rows i, i + blocks, ... for the
// parameters' gradients, so this number, the same for every GPU, fixes the order of the sums. Blocks take
// equally long and should all run at once: 98,304 threads are 745 on each of an H100's 132 SMs, which has
// registers for 65,536 / 80 = 819. A thread waits for 48 bytes of its next row meanwhile (x, gradient and
// the residual's), 4.7 MB in all, more than arrive in a microsecond.
constexpr int64_t kThreadsInFlight = 98304;

/// A thread's packs of a row: threadIdx.x, threadIdx.x + blockDim.x, ...
template <typename P>
struct ThreadPacks {
  const P* row;
  P first;
  __device__ ThreadPacks(const P* data, int64_t packs) : row(data), first() {
    if (threadIdx.x < packs) first = data[threadIdx.x];
  }
  __device__ P operator()(int64_t i) const { return i == threadIdx.x ? first : row[i]; }
};

/// s = x + added, written; the thread's own numbers, which it alone reads again.
template <typename P, int kVector>
__device__ void add_row(const P* x, const P* added, P* sum, int64_t packs) {
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    P a = x[i];
    const P b = added[i];
    for (int k = 0; k < kVector; ++k) put(a.at[k], to_float(a.at[k]) + to_float(b.at[k]));
    sum[i] = a;
  }
}

template <typename T, int kVector>
__global__ void norm_forward_kernel(NormForward a) {
  using P = Pack<T, kVector>;
  const int64_t row = blockIdx.x, packs = a.width / kVector;
  const P* s = static_cast<const P*>(a.x) + row * packs;
  if (a.added != nullptr) {
    P* sum = static_cast<P*>(a.sum) + row * packs;
    add_row<P, kVector>(s, static_cast<const P*>(a.added) + row * packs, sum, packs);
    s = sum;
  }
  const ThreadPacks<P> share(s, packs);
  float total[1] = {0};
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    const P pack = share(i);
    for (int k = 0; k < kVector; ++k) total[0] += to_float(pack.at[k]);
  }
  sum_over_block(total);
  const float mean = total[0] / static_cast<float>(a.width);
  float squares[1] = {0};
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    const P pack = share(i);
    for (int k = 0; k < kVector; ++k) {
      const float apart = to_float(pack.at[k]) - mean;
      squares[0] += apart * apart;
    }
  }
  sum_over_block(squares);
  const float inverse = 1.0F / sqrtf(squares[0] / static_cast<float>(a.width) + a.epsilon);
  if (threadIdx.x == 0) {
    a.stats[2 * row] = mean;
    a.stats[2 * row + 1] = inverse;
  }
  const P *weight = static_cast<const P*>(a.weight), *bias = static_cast<const P*>(a.bias);
  P* y = static_cast<P*>(a.y) + row * packs;
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    const P pack = share(i), scale = weight[i], shift = bias[i];
    P out;
    for (int k = 0; k < kVector; ++k) {
      put(out.at[k], (to_float(pack.at[k]) - mean) * inverse * to_float(scale.at[k]) + to_float(shift.at[k]));
    }
    y[i] = out;
  }
}

/// What a thread has added up of the parameters' gradients: of its first pack in registers, of others in the
/// block's own part of `partial`.
template <int kVector>
struct ColumnSums {
  float of_weight[kVector] = {}, of_bias[kVector] = {};
};

/// Rows of more packs than the block has threads.
template <typename T, int kVector>
__global__ void __launch_bounds__(kWideBlock) norm_backward_wide_kernel(NormBackward a) {
  using P = Pack<T, kVector>;
  const int64_t packs = a.width / kVector;
  const P* weight = static_cast<const P*>(a.weight);
  float* partial = a.partial != nullptr ? a.partial + 2 * a.width * blockIdx.x : nullptr;
  ColumnSums<kVector> sums;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const float mean = a.stats[2 * row], inverse = a.stats[2 * row + 1];
    const ThreadPacks<P> s(static_cast<const P*>(a.s) + row * packs, packs);
    const ThreadPacks<P> gradient(static_cast<const P*>(a.gradient) + row * packs, packs);
    float means[2] = {0, 0};  // of g * weight, and of that times the normalised number
    for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
      const P x = s(i), g = gradient(i), w = weight[i];
      for (int k = 0; k < kVector; ++k) {
        const float scaled = to_float(g.at[k]) * to_float(w.at[k]);
        means[0] += scaled;
        means[1] += scaled * (to_float(x.at[k]) - mean) * inverse;
      }
    }
    sum_over_block(means);
    for (float& m : means) m /= static_cast<float>(a.width);
    const P* of_sum = a.of_sum != nullptr ? static_cast<const P*>(a.of_sum) + row * packs : nullptr;
    P* of_x = static_cast<P*>(a.of_x) + row * packs;
    for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
      const P x = s(i), g = gradient(i), w = weight[i];
      const P more = of_sum != nullptr ? of_sum[i] : P();
      P out;
      for (int k = 0; k < kVector; ++k) {
        const float of_y = to_float(g.at[k]), normal = (to_float(x.at[k]) - mean) * inverse;
        const float of_s = inverse * (of_y * to_float(w.at[k]) - means[0] - normal * means[1]);
        put(out.at[k], of_sum != nullptr ? of_s + to_float(more.at[k]) : of_s);
        if (i == threadIdx.x) {
          sums.of_weight[k] += of_y * normal;
          sums.of_bias[k] += of_y;
        } else if (partial != nullptr) {
          float *to_weight = partial + i * kVector + k, *to_bias = to_weight + a.width;
          const bool begun = row != blockIdx.x;
          *to_weight = (begun ? *to_weight : 0) + of_y * normal;
          *to_bias = (begun ? *to_bias : 0) + of_y;
        }
      }
      of_x[i] = out;
    }
  }
  if (partial == nullptr || threadIdx.x >= packs) return;
  for (int k = 0; k < kVector; ++k) {
    partial[threadIdx.x * kVector + k] = sums.of_weight[k];
    partial[a.width + threadIdx.x * kVector + k] = sums.of_bias[k];
  }
}

/// Rows of at most one pack for each thread: all sums stay in registers, and the next row is on its way from
/// memory while the block works on one.
template <typename T, int kVector>
__global__ void __launch_bounds__(kNarrowBlock, kNarrowBlocks) norm_backward_kernel(NormBackward a) {
  using P = Pack<T, kVector>;
  struct Row {
    P x, gradient, of_sum;
    float mean, inverse;
  };
  const int64_t packs = a.width / kVector;
  const bool has_pack = threadIdx.x < packs;
  const auto read = [&](int64_t row) {
    Row found{};
    found.mean = a.stats[2 * row];
    found.inverse = a.stats[2 * row + 1];
    if (has_pack) {
      const int64_t pack = row * packs + threadIdx.x;
      found.x = static_cast<const P*>(a.s)[pack];
      found.gradient = static_cast<const P*>(a.gradient)[pack];
      if (a.of_sum != nullptr) found.of_sum = static_cast<const P*>(a.of_sum)[pack];
    }
    return found;
  };
  const P weight = has_pack ? static_cast<const P*>(a.weight)[threadIdx.x] : P();
  ColumnSums<kVector> sums;
  Row next = read(blockIdx.x);
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const Row own = next;
    if (row + gridDim.x < a.rows) next = read(row + gridDim.x);
    const auto normal = [&](int k) { return (to_float(own.x.at[k]) - own.mean) * own.inverse; };
    float means[2] = {0, 0};  // of g * weight, and of that times the normalised value
    for (int k = 0; k < kVector; ++k) {
      const float of_y = to_float(own.gradient.at[k]), scaled = of_y * to_float(weight.at[k]);
      sums.of_weight[k] += of_y * normal(k);
      sums.of_bias[k] += of_y;
      means[0] += scaled;
      means[1] += scaled * normal(k);
    }
    sum_over_block(means);
    for (float& m : means) m /= static_cast<float>(a.width);
    if (!has_pack) continue;
    P out;
    for (int k = 0; k < kVector; ++k) {
      const float scaled = to_float(own.gradient.at[k]) * to_float(weight.at[k]);
      const float of_s = own.inverse * (scaled - means[0] - normal(k) * means[1]);
      put(out.at[k], of_s + to_float(own.of_sum.at[k]));
    }
    static_cast<P*>(a.of_x)[row * packs + threadIdx.x] = out;
  }
  if (a.partial == nullptr || !has_pack) return;
  float* partial = a.partial + 2 * a.width * blockIdx.x + threadIdx.x * kVector;
  for (int k = 0; k < kVector; ++k) {
    partial[k] = sums.of_weight[k];
    partial[a.width + k] = sums.of_bias[k];
  }
}

}  // namespace

int64_t norm_parts(int64_t rows, int64_t width) {
  const int64_t most = kThreadsInFlight / threads_for(divided_up(width, 8), kWideBlock);
  return rows < most ? rows : most;
}

void norm_forward(const NormForward& a, void* stream) {
  with_type(a.number, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kMost = kAccess / sizeof(T);
    const bool packs = packs_fit<T>(a.width, a.x, a.added, a.weight, a.bias, a.sum, a.y);
    launch(packs ? norm_forward_kernel<T, kMost> : norm_forward_kernel<T, 1>, a.rows,
           threads_for(packs ? a.width / kMost : a.width), a, stream);
  });
}

void norm_backward(const NormBackward& a, void* stream) {
  with_type(a.number, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kMost = kAccess / sizeof(T);
    const bool packs = packs_fit<T>(a.width, a.gradient, a.of_sum, a.s, a.weight, a.of_x);
    const int64_t parts = norm_parts(a.rows, a.width);
    const int64_t pieces = packs ? a.width / kMost : a.width;
    if (pieces <= kNarrowBlock) {
      launch(packs ? norm_backward_kernel<T, kMost> : norm_backward_kernel<T, 1>, parts, threads_for(pieces),
             a, stream);
    } else {
      launch(packs ? norm_backward_wide_kernel<T, kMost> : norm_backward_wide_kernel<T, 1>, parts,
             threads_for(pieces, kWideBlock), a, stream);
    }
    if (a.partial == nullptr) return;
    add_parts(a.number, {a.partial, parts, 2 * a.width, a.width, a.of_weight, a.of_bias}, stream);
  });
}

}  // namespace tessera::cuda
