// SPDX-License-Identifier: Apache-2.0
// What a rank holds of a parameter where tensor parallelism cuts the layers of a unit. Pure; safe from any
// thread.
//
// Heads and hidden units are cut as they come: rank i of t holds items [n i / t, n (i + 1) / t) of n, so any
// degree is possible; ranks differ by one item at most, and with fewer items than ranks some hold none.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/arch/specs.h"
#include "tessera/base/region.h"

namespace tessera::arch {

/// Items [begin, end) of `items` that rank `index` of `degree` holds.
DimRange items_of(int64_t items, int64_t degree, int64_t index);

/// The boxes of a parameter that rank `index` of `degree` holds, in the order in which they lie in its
/// memory: one for each part of the cut; all of a parameter that is not cut.
std::vector<Box> boxes_of(const ParameterSpec& spec, int64_t degree, int64_t index);

/// Shape of the tensor that these boxes make.
std::vector<int64_t> shape_of(const ParameterSpec& spec, int64_t degree, int64_t index);

/// Hidden units that an MLP's cut keeps together: 32, which kernels and tiles of matrix units like, or the
/// largest power of two below that divides `hidden`.
int64_t hidden_items(int64_t hidden);

/// Of `hidden` units of an MLP, those [begin, end) that rank `index` of `degree` holds.
DimRange hidden_range(int64_t hidden, int64_t degree, int64_t index);
/// How many these are.
inline int64_t hidden_of(int64_t hidden, int64_t degree, int64_t index) {
  return hidden_range(hidden, degree, index).size();
}

}  // namespace tessera::arch
