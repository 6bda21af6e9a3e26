// SPDX-License-Identifier: Apache-2.0
// Adafactor's second moments: of a matrix, means over its rows and over its columns. Local; a tensor may be
// given in parts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/base/region.h"

namespace tessera::ops {

/// A tensor whose second moments are factored over its two largest dims. `row` and `column` moments have the
/// tensor's shape without (size 1) the largest and the second largest of them.
struct Factored {
  std::vector<int64_t> row_shape, column_shape;
  int64_t row_numel = 1, column_numel = 1;
  // By dim: elements of the tensor, and steps through the two moments (0 along the dim that is missing).
  std::vector<int64_t> shape, row_steps, column_steps;
  int64_t largest = 0, second = 0;  // their dims
};

/// None where the second largest dim has less than 32 elements, as in big_vision. Of equal dims the later is
/// the larger.
std::optional<Factored> factored(const std::vector<int64_t>& shape);

/// Adds (g * grad_scale)^2 of a region of the tensor to the sums over the missing dims. `gradient`:
/// [region.numel()] float32 or, like the tensors of the functions below, float64 (with LibTorch's
/// operations).
void add_squares(const Factored& tensor, const Region& region, const at::Tensor& gradient, double grad_scale,
                 double* row_sums, double* column_sums);

/// gradient (as above) *= grad_scale / sqrt(row * column / mean of row over the second largest dim), from the
/// whole moments, float32 of the shapes above.
void divide_by_root(const Factored& tensor, const Region& region, at::Tensor gradient, double grad_scale,
                    const at::Tensor& row, const at::Tensor& column);

/// For tensors that are not factored: squares += (1 - decay) * ((g * grad_scale)^2 + 1e-30 - squares), then
/// gradient *= grad_scale / sqrt(squares). [n] float32.
void divide_by_root(at::Tensor gradient, double grad_scale, at::Tensor squares, double decay);

/// average += (1 - momentum) * (update - average); p = (1 - lr * weight_decay) * p - lr * average. [n]
/// float32; without momentum `average` is undefined and the update itself is followed.
void follow(at::Tensor parameter, const at::Tensor& update, at::Tensor average, double lr, double momentum,
            double weight_decay);

}  // namespace tessera::ops
