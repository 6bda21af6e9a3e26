// SPDX-License-Identifier: Apache-2.0
// Linear layers whose products have factors in fp8. Differentiable once. Any device and float dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/ops/gelu_output.h"
#include "tessera/ops/layer_norm.h"
#include "tessera/ops/linear.h"

namespace tessera::ops {

/// x weight^T + bias, of factors rounded to e4m3 (sign, 4 bits of exponent, 3 of mantissa). `x`: [..., in];
/// `weight`: [out, in]; `bias`: [out]; result [..., out] in x's dtype, rounded to bf16.
///
/// Every row of a factor has a scale of its own, the least power of two that brings its largest value to at
/// most 448, e4m3's largest number, so scaling itself rounds nothing and a row of the result depends on its
/// row of x and the weight alone. Sums and bias are added in fp32. Backward: the gradient of x is the product
/// of the gradient and the weight, rounded alike (a scale for each row of the gradient and each column of the
/// weight); the weight's is the product of gradient and x in bf16. A row with a NaN or an infinity gives NaN.
///
/// On a GPU of compute capability 8.9 or more the factors are fp8 (at::_scaled_mm); elsewhere the same
/// numbers, which bf16 holds exactly, are multiplied as bf16: equal but for the order of sums.
/// `use`: of the result, see linear.h.
at::Tensor fp8_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      Use use = Use::kRead);
/// The same of x.rows, bit for bit, gradients as well, but that backward makes those rows again.
at::Tensor fp8_linear(const LayerNormOutput& x, const at::Tensor& weight, const at::Tensor& bias);
at::Tensor fp8_linear(const GeluOutput& x, const at::Tensor& weight, const at::Tensor& bias,
                      Use use = Use::kRead);

/// [rows, columns] of float32 or bfloat16 as numbers of e4m3 times a scale a row.
struct Fp8Rows {
  at::Tensor numbers;  // [rows, columns] Float8_e4m3fn
  at::Tensor scales;   // [rows, 1] float32, powers of two from 2^-124 on
};
Fp8Rows fp8_rows(const at::Tensor& rows);

/// What these stand for, exactly: bfloat16.
at::Tensor fp8_rounded(const at::Tensor& rows);

/// The product of `left` [m, k] and the transpose of `right` [n, k], plus `bias` ([n] bfloat16, or
/// undefined), by at::_scaled_mm: [m, n] bfloat16. Sizes that it does not take are filled up with zeros.
///
/// Sums move from the tensor cores' accumulators, which keep some 13 bits of a mantissa, to fp32 every 128
/// values. What LibTorch calls fast accumulation leaves them there: on an H100 sums of 1,024 values of one
/// sign were then off by 1.6 % of the largest result, so it is not used.
at::Tensor scaled_product(const at::Tensor& left, const at::Tensor& right, const at::Tensor& bias);

}  // namespace tessera::ops
