// SPDX-License-Identifier: Apache-2.0
// The epilogue of a product, 16 columns of a row at a time. Private to kernels; like vectors.h without
// any standard header.
#pragma once

#include "tessera/ops/cpu/epilogue.h"
#include "tessera/ops/cpu/vector_gelu.h"

namespace tessera::ops::vectors {
namespace {

/// In place of a mask: masked loads and stores of 16 bits take several times as long on some CPUs.
struct AllLanes {};

template <typename T>
inline Floats load(const T* p, AllLanes) {
  return load(p);
}
template <typename T>
inline void store(T* p, AllLanes, Floats v) {
  store(p, v);
}

/// `c`: the 16 sums that begin at element `at` of the result, in `column`; `lanes`: those that exist, a mask
/// or AllLanes.
template <typename T, typename Lanes>
inline void finish(const Epilogue<T>& e, Floats c, int64_t at, int64_t column, Lanes lanes) {
  if (e.bias != nullptr) {
    c = c + load(e.bias + column, lanes);
  }
  if (e.linear != nullptr) {
    store(e.linear + at, lanes, c);
    c = gelu_for(rounded_to(c, T()), T());
  }
  if (e.slope_of != nullptr) {
    c = c * gelu_derivative_for(load(e.slope_of + at, lanes), T());
  }
  if (e.residual != nullptr) {
    c = c + load(e.residual + at, lanes);
  }
  store(e.out + at, lanes, c);
}

template <typename T, typename Lanes>
inline void gelu_backward_at(const T* gradient, const T* linear, T* out, Lanes lanes) {
  const Floats derivative = gelu_derivative_for(load(linear, lanes), T());
  store(out, lanes, derivative * load(gradient, lanes));
}

/// out = gradient * gelu'(linear), element by element.
template <typename T>
inline void gelu_backward_of(const T* gradient, const T* linear, T* out, int64_t count) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) gelu_backward_at(gradient + i, linear + i, out + i, AllLanes());
  if (i < count) gelu_backward_at(gradient + i, linear + i, out + i, first_lanes(count - i));
}

/// GELU of `rows` rows of `count` elements, the bits that finish() makes of the same `linear`.
template <typename T>
inline void gelu_of(const T* linear, int64_t row_step, int64_t rows, int64_t count, T* out,
                    int64_t out_step) {
  for (int64_t row = 0; row < rows; ++row, linear += row_step, out += out_step) {
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) store(out + i, gelu_for(load(linear + i), T()));
    if (i == count) continue;
    const Mask lanes = first_lanes(count - i);
    store(out + i, lanes, gelu_for(load(linear + i, lanes), T()));
  }
}

}  // namespace
}  // namespace tessera::ops::vectors
