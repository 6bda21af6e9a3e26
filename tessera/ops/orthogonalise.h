// SPDX-License-Identifier: Apache-2.0
// What Muon makes of a matrix.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace tessera::ops {

/// `matrix` [rows, columns], any float dtype, with singular values near 1: five steps of Newton-Schulz with
/// Jordan's coefficients (kellerjordan.github.io/posts/muon), X = a X + (b A + c A^2) X, A = X X^T, from X =
/// matrix / |matrix|. The steps are computed in `compute`, the norm in the matrix's dtype, which the result
/// has as well: a new tensor. About 2 * 5 * (2 s^2 l + s^3) FLOPs for sides s <= l.
at::Tensor orthogonalised(const at::Tensor& matrix, at::ScalarType compute);

/// The dtype in which orthogonalised() is to compute for a matrix of `dtype` on `device`. On the CPU that
/// dtype. On a GPU bf16 for float32, as in Jordan's implementation and torch.optim.Muon: float32 products
/// without TF32 take ten times as long there, and the iteration does not need their precision, since it only
/// brings singular values to between about 0.7 and 1.2.
at::ScalarType orthogonalise_dtype(at::Device device, at::ScalarType dtype);

}  // namespace tessera::ops
