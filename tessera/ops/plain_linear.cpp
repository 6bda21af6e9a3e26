// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/plain_linear.h"

#include <ATen/ATen.h>

#include "tessera/ops/fast_path.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class PlainLinear : public torch::autograd::Function<PlainLinear> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, const RecomputeFrom& made) {
    save_with_input(ctx, {weight}, x, made);
    return at::linear(x, weight, bias);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &weight = saved[0], gradient = as_rows(gradients[0]);
    at::Tensor of_x, of_weight, of_bias;
    if (ctx->needs_input_grad(1)) of_weight = at::mm(gradient.t(), as_rows(saved_input(ctx, saved)));
    if (ctx->needs_input_grad(2)) of_bias = gradient.sum(0);
    if (ctx->needs_input_grad(0)) {
      auto shape = gradients[0].sizes().vec();
      shape.back() = weight.size(1);
      of_x = at::mm(gradient, weight).view(shape);
    }
    return {of_x, of_weight, of_bias, at::Tensor()};
  }
};

}  // namespace

at::Tensor plain_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                        const RecomputeFrom& made) {
  return PlainLinear::apply(x, weight, bias, made);
}

}  // namespace tessera::ops
