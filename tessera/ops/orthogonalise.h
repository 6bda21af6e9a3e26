// SPDX-License-Identifier: Apache-2.0
// What Muon makes of a matrix.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::ops {

/// `matrix` [rows, columns], any float dtype, with singular values near 1: five steps of Newton-Schulz in the
/// matrix's dtype with Jordan's coefficients (kellerjordan.github.io/posts/muon), X = a X + (b A + c A^2) X,
/// A = X X^T, from X = matrix / |matrix|. About 2 * 5 * (2 s^2 l + s^3) FLOPs for sides s <= l. A new tensor.
at::Tensor orthogonalised(const at::Tensor& matrix);

}  // namespace tessera::ops
