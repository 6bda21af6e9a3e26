// SPDX-License-Identifier: Apache-2.0
// Multi-head attention without mask or dropout. Any device and float dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/ops/layer_norm.h"

namespace tessera::ops {

/// softmax(q k^T / sqrt(head width)) v for each head. `q`: [batch, queries, heads, head width]; `k`, `v`:
/// [batch, tokens, heads, head width]; result [batch, queries, heads * head width].
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

/// Attention of a packed projection [batch, tokens, 3 * width] (q, k, v one after another, heads inside
/// each); result [batch, tokens, width].
at::Tensor self_attention(const at::Tensor& qkv, int64_t heads);
/// self_attention(linear(x.rows, weight, bias), heads). x.rows is not held once it is projected. Where a
/// device has kernels for it, the gradients of q, k and v are put together and summed for the bias in one
/// pass. `keeps_activations`: the projection keeps x.rows for backward, which else makes them again; the
/// results are the same bits.
at::Tensor self_attention(LayerNormOutput x, const at::Tensor& weight, const at::Tensor& bias, int64_t heads,
                          bool keeps_activations = false);

/// Attention of queries [batch, queries, width] to packed keys and values [batch, tokens, 2 * width]; result
/// [batch, queries, width].
at::Tensor cross_attention(const at::Tensor& q, const at::Tensor& key_value, int64_t heads);

}  // namespace tessera::ops
