#include "tessera/ops/attention.h"

#include <ATen/ops/scaled_dot_product_attention.h>

namespace tessera::ops {

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
      .transpose(1, 2)
      .flatten(2);
}

at::Tensor self_attention(const at::Tensor& qkv, int64_t heads) {
  const auto parts = qkv.unflatten(2, {3, heads, -1}).unbind(2);
  return attention(parts[0], parts[1], parts[2]);
}

}  // namespace tessera::ops
