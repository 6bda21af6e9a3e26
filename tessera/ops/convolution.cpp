// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/convolution.h"

#include <ATen/ATen.h>

#include <tuple>

#include "tessera/ops/kept_input.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

int64_t padding_of(const at::Tensor& weight) { return weight.size(2) / 2; }

class Convolution : public torch::autograd::Function<Convolution> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& images, const at::Tensor& weight,
                            int64_t stride, const RecomputeFrom& made) {
    save_with_input(ctx, {weight}, images, made);
    ctx->saved_data["stride"] = stride;
    return at::conv2d(images, weight, {}, stride, padding_of(weight));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& weight = saved[0];
    const int64_t stride = ctx->saved_data["stride"].toInt(), padding = padding_of(weight);
    const auto of = at::convolution_backward(
        gradients[0], saved_images(ctx, saved), weight, /*bias_sizes=*/std::nullopt, {stride, stride},
        {padding, padding}, /*dilation=*/{1, 1}, /*transposed=*/false, /*output_padding=*/{0, 0},
        /*groups=*/1, {ctx->needs_input_grad(0), ctx->needs_input_grad(1), false});
    return {std::get<0>(of), std::get<1>(of), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor convolution(const BatchNormOutput& x, const at::Tensor& weight, int64_t stride) {
  if (!x.is_known()) return at::conv2d(x.images, weight, {}, stride, padding_of(weight));
  return Convolution::apply(x.images, weight, stride, RecomputeFrom(x));
}

}  // namespace tessera::ops
