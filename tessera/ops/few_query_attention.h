// SPDX-License-Identifier: Apache-2.0
// Attention of a few queries without keys and values. Differentiable once. Any device and float dtype.
//
// Note [No keys, no values]: keys and values of T tokens cost 2 T width^2 products, however few the queries
// are. But a query meets a key as q (W x + b) = (W^T q) x + q b: so it may go to the tokens instead, as a
// vector u = W^T q of the whole width for each head, and the same b for all tokens moves no softmax. And a
// sum of values is the value of the sum: p (W x + b) = W (p x) + b, as p sums to 1. What is left is 2 heads T
// width products a query, and passes over x, which memory bounds.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/ops/layer_norm.h"

namespace tessera::ops {

/// What the first `queries` rows of each image see: those rows of self_attention(linear(x, weight, bias),
/// heads). `x.rows`: [batch, tokens, width], not kept for backward, which norms again; `weight`: [3 * inner,
/// width], `inner` = heads * head width; `bias`: [3 * inner]; result [batch, queries, inner]. The gradient of
/// the keys' bias is 0.
at::Tensor few_query_attention(LayerNormOutput x, const at::Tensor& weight, const at::Tensor& bias,
                               int64_t heads, int64_t queries);

}  // namespace tessera::ops
