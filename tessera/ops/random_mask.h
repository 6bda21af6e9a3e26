// SPDX-License-Identifier: Apache-2.0
// Dropout and drop-path with counter-based masks: a mask is a function of (layer key, sample number,
// element), so any rank, any split of the batch and any recomputation draws the same one. Safe from any
// thread.
//
// Masks are made on the CPU; device/host_values.h takes them to a device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace tessera::ops {

/// Multipliers [samples.size(), elements] in `dtype`: 0 with probability `rate`, else 1 / (1 - rate). The
/// rate is rounded to 1/65536 (16 random bits an element); the multiplier fits the rounded rate, so the mean
/// is exact. Requires: 0 <= rate <= 1.
at::Tensor dropout_mask(double rate, uint64_t layer_key, std::span<const uint64_t> samples, int64_t elements,
                        at::ScalarType dtype);

/// Columns [first, first + count) of a matrix with `all` columns.
struct MaskColumns {
  int64_t first = 0, count = 0, all = 0;
};
/// These columns of each sample's matrix [rows, all]: [samples.size(), rows, count], the same values that
/// dropout_mask(.., rows * columns.all, ..) has there.
at::Tensor dropout_mask_columns(double rate, uint64_t layer_key, std::span<const uint64_t> samples,
                                int64_t rows, const MaskColumns& columns, at::ScalarType dtype);

/// One multiplier a sample, [samples.size()] in `dtype`: 0 with probability `rate`, else 1 / (1 - rate).
at::Tensor drop_path_mask(double rate, uint64_t layer_key, std::span<const uint64_t> samples,
                          at::ScalarType dtype);

}  // namespace tessera::ops
