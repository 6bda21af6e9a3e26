// SPDX-License-Identifier: Apache-2.0
// Multi-head attention without mask or dropout. Any device and float dtype.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::ops {

/// softmax(q k^T / sqrt(head width)) v for each head. `q`: [batch, queries, heads, head width]; `k`, `v`:
/// [batch, tokens, heads, head width]; result [batch, queries, heads * head width].
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

/// Attention of a packed projection [batch, tokens, 3 * width] (q, k, v one after another, heads inside
/// each); result [batch, tokens, width].
at::Tensor self_attention(const at::Tensor& qkv, int64_t heads);

/// Attention of queries [batch, queries, width] to packed keys and values [batch, tokens, 2 * width]; result
/// [batch, queries, width].
at::Tensor cross_attention(const at::Tensor& q, const at::Tensor& key_value, int64_t heads);

}  // namespace tessera::ops
