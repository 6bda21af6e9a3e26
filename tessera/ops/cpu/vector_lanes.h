// SPDX-License-Identifier: Apache-2.0
// A row by vectors: kernels written once for whole vectors and for what is left of a row. Private to the
// files that compile it; like vectors.h without any standard header.
#pragma once

#include "tessera/ops/cpu/vector_math.h"

namespace tessera::ops::vectors {
namespace {

// 16 columns at a time: all of them, or what is left.
struct Whole {
  template <typename T>
  Floats load(const T* p) const {
    return vectors::load(p);
  }
  template <typename T>
  void store(T* p, Floats v) const {
    vectors::store(p, v);
  }
  // Past the caches; p: a multiple of the vector's size.
  template <typename T>
  void stream(T* p, Floats v) const {
    vectors::stream(p, v);
  }
  Floats kept(Floats v) const { return v; }
};

struct Rest {
  Mask mask;
  template <typename T>
  Floats load(const T* p) const {
    return vectors::load(p, mask);
  }
  template <typename T>
  void store(T* p, Floats v) const {
    vectors::store(p, mask, v);
  }
  template <typename T>
  void stream(T* p, Floats v) const {
    vectors::store(p, mask, v);
  }
  Floats kept(Floats v) const { return vectors::kept(mask, v); }
};

// body(lanes, first column) for all columns, 16 at a time.
template <typename Body>
[[gnu::always_inline]] inline void over_sixteens(int64_t width, const Body& body) {
  int64_t j = 0;
  for (; j + 16 <= width; j += 16) body(Whole(), j);
  if (j < width) body(Rest{first_lanes(width - j)}, j);
}

}  // namespace
}  // namespace tessera::ops::vectors
