// SPDX-License-Identifier: Apache-2.0
// The shapes of operations that LibTorch has no kernel for on tensors without memory (at::kMeta) without
// Python. Included by one file of a test program.
#pragma once

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>

namespace tessera::testing {

using Maybe = std::optional<at::Tensor>;

inline std::tuple<at::Tensor, at::Tensor, at::Tensor> meta_layer_norm(const at::Tensor& input,
                                                                      at::IntArrayRef normalized,
                                                                      const Maybe&, const Maybe&, double) {
  auto stats = input.sizes().vec();
  for (size_t i = 0; i < normalized.size(); ++i) stats[stats.size() - 1 - i] = 1;
  const at::TensorOptions options = input.options().dtype(at::kFloat);
  return {at::empty_like(input), at::empty(stats, options), at::empty(stats, options)};
}

inline std::tuple<at::Tensor, at::Tensor, at::Tensor> meta_layer_norm_backward(
    const at::Tensor&, const at::Tensor& input, at::IntArrayRef, const at::Tensor&, const at::Tensor&,
    const Maybe& weight, const Maybe& bias, std::array<bool, 3> wanted) {
  return {wanted[0] ? at::empty_like(input) : at::Tensor(),
          wanted[1] ? at::empty_like(*weight) : at::Tensor(),
          wanted[2] ? at::empty_like(*bias) : at::Tensor()};
}

inline at::Tensor meta_index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  TORCH_CHECK(index.is_meta(), "an index on another device");
  auto shape = self.sizes().vec();
  shape[static_cast<size_t>(dim)] = index.numel();
  return at::empty(shape, self.options());
}

inline at::Tensor meta_where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(
      condition.is_meta() && (self.is_meta() || self.dim() == 0) && (other.is_meta() || other.dim() == 0),
      "tensors of two devices");
  const auto shape = at::infer_size(at::infer_size(condition.sizes(), self.sizes()), other.sizes());
  return at::empty(shape, at::TensorOptions(at::result_type(self, other)).device(at::kMeta));
}

inline at::Tensor& meta_where_out(const at::Tensor& condition, const at::Tensor& self,
                                  const at::Tensor& other, at::Tensor& out) {
  out.resize_(meta_where(condition, self, other).sizes());
  return out;
}

inline std::tuple<at::Tensor, at::Tensor> meta_log_sigmoid(const at::Tensor& self) {
  return {at::empty_like(self), at::empty_like(self)};
}

inline at::Tensor meta_log_sigmoid_backward(const at::Tensor& gradient, const at::Tensor&,
                                            const at::Tensor&) {
  return at::empty_like(gradient);
}

inline at::Tensor meta_dot(const at::Tensor& self, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_meta() && self.sizes() == tensor.sizes(), "vectors of two devices or lengths");
  return at::empty({}, self.options());
}

}  // namespace tessera::testing

TORCH_LIBRARY_IMPL(aten, Meta, library) {
  library.impl("native_layer_norm", tessera::testing::meta_layer_norm);
  library.impl("native_layer_norm_backward", tessera::testing::meta_layer_norm_backward);
  library.impl("dot", tessera::testing::meta_dot);
  library.impl("index_select", tessera::testing::meta_index_select);
  library.impl("log_sigmoid_forward", tessera::testing::meta_log_sigmoid);
  library.impl("log_sigmoid_backward", tessera::testing::meta_log_sigmoid_backward);
  library.impl("where.self", tessera::testing::meta_where);
  library.impl("where.self_out", tessera::testing::meta_where_out);
}
