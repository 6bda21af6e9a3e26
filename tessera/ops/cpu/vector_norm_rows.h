// SPDX-License-Identifier: Apache-2.0
// Layer normalisation, written once for rows of bf16 and of fp32. Private to the file that compiles it; like
// vectors.h without any standard header.
#pragma once

#include "tessera/ops/cpu/vector_lanes.h"
#include "tessera/ops/cpu/vector_norm.h"

namespace tessera::ops::vectors {
namespace {

// body(lanes, first column, which of four sums: additions do not wait for each other).
template <typename Body>
[[gnu::always_inline]] inline void over_columns(int64_t width, const Body& body) {
  int64_t j = 0;
  for (; j + 64 <= width; j += 64) {
    body(Whole(), j, 0);
    body(Whole(), j + 16, 1);
    body(Whole(), j + 32, 2);
    body(Whole(), j + 48, 3);
  }
  for (; j + 16 <= width; j += 16) body(Whole(), j, 0);
  if (j < width) body(Rest{first_lanes(width - j)}, j, 1);
}

struct FourSums {
  Floats s[4] = {zeros(), zeros(), zeros(), zeros()};
  float total() const { return reduce_add(s[0] + s[1] + (s[2] + s[3])); }
};

}  // namespace

template <typename Set, typename T>
void LayerNormRows<Set, T>::forward(const T* x, int64_t rows, int64_t width, const T* weight, const T* bias,
                                    float epsilon, T* y, float* stats) {
  const float share = 1.0F / static_cast<float>(width);
  for (int64_t row = 0; row < rows; ++row, x += width, y += width, stats += 2) {
    FourSums sums, squares;
    over_columns(width, [&](const auto& lanes, int64_t j, int which) {
      sums.s[which] = sums.s[which] + lanes.load(x + j);
    });
    const Floats mean = broadcast(sums.total() * share);
    over_columns(width, [&](const auto& lanes, int64_t j, int which) {
      const Floats centred = lanes.kept(lanes.load(x + j) - mean);
      squares.s[which] = fmadd(centred, centred, squares.s[which]);
    });
    stats[0] = first_of(mean);
    stats[1] = 1.0F / __builtin_sqrtf(squares.total() * share + epsilon);
    const Floats rstd = broadcast(stats[1]);
    over_columns(width, [&](const auto& lanes, int64_t j, int) {
      const Floats normed = (lanes.load(x + j) - mean) * rstd;
      lanes.store(y + j, fmadd(normed, lanes.load(weight + j), lanes.load(bias + j)));
    });
  }
}

template <typename Set, typename T>
void LayerNormRows<Set, T>::backward(const T* gradient, const T* more, const T* x, int64_t rows,
                                     int64_t width, const T* weight, const float* stats, T* dx,
                                     float* weight_sums, float* bias_sums) {
  const float share = 1.0F / static_cast<float>(width);
  for (int64_t row = 0; row < rows; ++row, gradient += width, x += width, dx += width, stats += 2) {
    const Floats mean = broadcast(stats[0]), rstd = broadcast(stats[1]);
    FourSums sums, products;
    // (Lanes beyond the row: a gradient of zero.)
    over_columns(width, [&](const auto& lanes, int64_t j, int which) {
      const Floats dy = lanes.load(gradient + j);
      const Floats normed = (lanes.load(x + j) - mean) * rstd;
      const Floats inner = dy * lanes.load(weight + j);
      sums.s[which] = sums.s[which] + inner;
      products.s[which] = fmadd(inner, normed, products.s[which]);
      lanes.store(weight_sums + j, fmadd(dy, normed, lanes.load(weight_sums + j)));
      lanes.store(bias_sums + j, dy + lanes.load(bias_sums + j));
    });
    const Floats mean_inner = broadcast(sums.total() * share);
    const Floats mean_product = broadcast(products.total() * share);
    over_columns(width, [&](const auto& lanes, int64_t j, int) {
      const Floats normed = (lanes.load(x + j) - mean) * rstd;
      const Floats inner = lanes.load(gradient + j) * lanes.load(weight + j);
      const Floats centred = inner - mean_inner - normed * mean_product;
      const Floats added = more == nullptr ? zeros() : lanes.load(more + j);
      lanes.store(dx + j, fmadd(centred, rstd, added));
    });
    if (more != nullptr) more += width;
  }
}

}  // namespace tessera::ops::vectors
