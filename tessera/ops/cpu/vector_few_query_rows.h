// SPDX-License-Identifier: Apache-2.0
// The kernels of vector_few_query.h, written once for bf16 and fp32. Private to the file that compiles
// them; like vectors.h without any standard header.
#pragma once

#include "tessera/ops/cpu/vector_few_query.h"
#include "tessera/ops/cpu/vector_lanes.h"

namespace tessera::ops::vectors {
namespace {

// Factors that a block multiplies at a time: of 32 registers 24 of sums for 10 loads, of 16 8 for 5; and in
// mix(), which needs no register for each of them, vectors of a row.
constexpr bool kManyRegisters = CompiledFor::kRegisters == 32;
constexpr int64_t kLeft = kManyRegisters ? 6 : 1, kFour = 4, kMixed = 6, kVectors = kManyRegisters ? 4 : 1;

// result [rows, tokens] = u x^T of u [rows, width] and x [tokens, width]. What is left of a block is its last
// row once more, which is not stored again.
template <typename T>
inline void dots(const float* u, int64_t rows, const T* x, int64_t tokens, int64_t width, float* result) {
  for (int64_t token = 0; token < tokens; token += kFour) {
    const T* b[kFour];
    for (int64_t j = 0; j < kFour; ++j) b[j] = x + min_of(token + j, tokens - 1) * width;
    for (int64_t row = 0; row < rows; row += kLeft) {
      const float* a[kLeft];
      for (int64_t i = 0; i < kLeft; ++i) a[i] = u + min_of(row + i, rows - 1) * width;
      Floats sum[kLeft][kFour];
      for (auto& of_row : sum) {
        for (Floats& one : of_row) one = zeros();
      }
      over_sixteens(width, [&](const auto& lanes, int64_t c) {
        Floats right[kFour];
        for (int64_t j = 0; j < kFour; ++j) right[j] = lanes.load(b[j] + c);
        for (int64_t i = 0; i < kLeft; ++i) {
          const Floats left = lanes.load(a[i] + c);
          for (int64_t j = 0; j < kFour; ++j) sum[i][j] = fmadd(left, right[j], sum[i][j]);
        }
      });
      for (int64_t i = 0; i < min_of(kLeft, rows - row); ++i) {
        store_sums_of_four(result + (row + i) * tokens + token, min_of(kFour, tokens - token), sum[i]);
      }
    }
  }
}

// A matrix whose number of row i and column j lies at data + i * row_step + j * column_step.
struct Shares {
  const float* data;
  int64_t row_step, column_step;
};

// Columns [c, c + 16 * kSome) of mix(), below, in rows [row, row + kMixed).
template <int64_t kSome, typename Lanes, typename T, typename R>
[[gnu::always_inline]] inline void mix_block(const Lanes& lanes, const Shares& shares, int64_t row,
                                             int64_t rows, const T* x, int64_t count, int64_t width,
                                             int64_t c, R* result, int64_t step) {
  const float* a[kMixed];
  for (int64_t i = 0; i < kMixed; ++i) a[i] = shares.data + min_of(row + i, rows - 1) * shares.row_step;
  Floats sum[kMixed][kSome];
  for (auto& of_row : sum) {
    for (Floats& one : of_row) one = zeros();
  }
  const T* right = x + c;
  for (int64_t k = 0; k < count; ++k, right += width) {
    Floats b[kSome];
    for (int64_t j = 0; j < kSome; ++j) b[j] = lanes.load(right + 16 * j);
    for (int64_t i = 0; i < kMixed; ++i) {
      const Floats share = broadcast(a[i][k * shares.column_step]);
      for (int64_t j = 0; j < kSome; ++j) sum[i][j] = fmadd(share, b[j], sum[i][j]);
    }
  }
  for (int64_t i = 0; i < min_of(kMixed, rows - row); ++i) {
    for (int64_t j = 0; j < kSome; ++j) lanes.store(result + (row + i) * step + c + 16 * j, sum[i][j]);
  }
}

// result [rows, width], its rows `step` apart, = shares [rows, count] x [count, width].
template <typename T, typename R>
inline void mix(const Shares& shares, int64_t rows, const T* x, int64_t count, int64_t width, R* result,
                int64_t step) {
  const auto over_rows = [&](const auto& block) {
    for (int64_t row = 0; row < rows; row += kMixed) block(row);
  };
  int64_t c = 0;
  for (; c + 16 * kVectors <= width; c += 16 * kVectors) {
    over_rows([&](int64_t row) {
      mix_block<kVectors>(Whole(), shares, row, rows, x, count, width, c, result, step);
    });
  }
  for (; c + 16 <= width; c += 16) {
    over_rows(
        [&](int64_t row) { mix_block<1>(Whole(), shares, row, rows, x, count, width, c, result, step); });
  }
  if (c == width) return;
  const Rest rest{first_lanes(width - c)};
  over_rows([&](int64_t row) { mix_block<1>(rest, shares, row, rows, x, count, width, c, result, step); });
}

// Rows `step` apart as fp32 without gaps.
template <typename T>
inline void widen(const T* from, int64_t rows, int64_t width, int64_t step, float* to) {
  for (int64_t row = 0; row < rows; ++row, from += step, to += width) {
    over_sixteens(width, [&](const auto& lanes, int64_t c) { lanes.store(to + c, lanes.load(from + c)); });
  }
}

constexpr float kLowest = -3.4e38F;
inline Floats or_lowest(const Whole&, Floats v) { return v; }
inline Floats or_lowest(const Rest& rest, Floats v) { return choose(rest.mask, v, broadcast(kLowest)); }

// softmax(scale * s) in place of s [tokens]. A NaN makes all of it NaN.
inline void softmax(float* s, int64_t tokens, float scale) {
  const Floats by = broadcast(scale);
  Floats most = broadcast(kLowest);
  over_sixteens(tokens, [&](const auto& lanes, int64_t t) {
    const Floats scaled = lanes.load(s + t) * by;
    lanes.store(s + t, scaled);
    most = max(most, or_lowest(lanes, scaled));
  });
  const Floats top = broadcast(reduce_max(most));
  Floats sum = zeros();
  over_sixteens(tokens, [&](const auto& lanes, int64_t t) {
    const Floats e = lanes.kept(precise_exp(lanes.load(s + t) - top));
    lanes.store(s + t, e);
    sum = sum + e;
  });
  const Floats share = broadcast(1.0F / reduce_add(sum));
  over_sixteens(tokens, [&](const auto& lanes, int64_t t) { lanes.store(s + t, lanes.load(s + t) * share); });
}

// ds = scale * p * (dp - sum(p * dp)) in place of dp [tokens].
inline void softmax_back(const float* p, float* dp, int64_t tokens, float scale) {
  Floats sum = zeros();
  over_sixteens(
      tokens, [&](const auto& lanes, int64_t t) { sum = fmadd(lanes.load(p + t), lanes.load(dp + t), sum); });
  const Floats total = broadcast(reduce_add(sum)), by = broadcast(scale);
  over_sixteens(tokens, [&](const auto& lanes, int64_t t) {
    const Floats slope = (lanes.load(dp + t) - total) * by;
    lanes.store(dp + t, lanes.load(p + t) * slope);
  });
}

}  // namespace

template <typename Set, typename T>
void FewQueryImage<Set, T>::forward(const T* x, const T* u, const FewQueryShape& shape, float* p, T* z,
                                    float* scratch) {
  const auto [rows, tokens, width, step, scale] = shape;
  widen(u, rows, width, step, scratch);
  dots(scratch, rows, x, tokens, width, p);
  for (int64_t row = 0; row < rows; ++row) softmax(p + row * tokens, tokens, scale);
  mix({p, tokens, 1}, rows, x, tokens, width, z, step);
}

// x's gradient is one product: [ds, p]^T of [u, dz].
template <typename Set, typename T>
void FewQueryImage<Set, T>::backward(const T* x, const T* u, const T* dz, const float* p,
                                     const FewQueryShape& shape, T* du, T* dx, float* scratch) {
  const auto [rows, tokens, width, step, scale] = shape;
  float *wide_u = scratch, *wide_dz = wide_u + rows * width, *ds = wide_dz + rows * width,
        *p_below = ds + rows * tokens;
  widen(dz, rows, width, step, wide_dz);
  dots(wide_dz, rows, x, tokens, width, ds);
  for (int64_t row = 0; row < rows; ++row) softmax_back(p + row * tokens, ds + row * tokens, tokens, scale);
  mix({ds, tokens, 1}, rows, x, tokens, width, du, step);
  if (dx == nullptr) return;
  widen(u, rows, width, step, wide_u);
  widen(p, rows, tokens, tokens, p_below);
  mix({ds, 1, tokens}, tokens, wide_u, 2 * rows, width, dx, width);
}

}  // namespace tessera::ops::vectors
