// SPDX-License-Identifier: Apache-2.0
// Elements of a tensor in memory whose dims lie in any order. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera::formats {

/// Of a tensor whose last dim lies closest together, in elements; all 0 where it has no element.
std::vector<int64_t> row_major(const std::vector<int64_t>& shape);
/// Of one whose first dim does (Fortran's order).
std::vector<int64_t> column_major(const std::vector<int64_t>& shape);

/// Where the elements of a tensor lie.
struct Strided {
  std::vector<int64_t> shape, strides;  // in elements
  uint64_t size = 1;                    // bytes of one element
};

/// Elements of the flattened (row-major) tensor from `begin` on, as many as `out` has bytes for. Requires:
/// `begin` and all of them inside of the shape, and what they touch inside of `held`, which begins with the
/// first element.
void gather(std::span<const std::byte> held, const Strided& tensor, int64_t begin, std::span<std::byte> out);

}  // namespace tessera::formats
