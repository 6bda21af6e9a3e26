// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/mlp.h"

#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <tuple>

#include "tessera/ops/kept_input.h"
#include "tessera/ops/linear.h"
#include "tessera/ops/linear_products.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <typename Products>
class FastMlp : public torch::autograd::Function<FastMlp<Products>> {
  using T = typename Products::T;

 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_given, const at::Tensor& fc1_weight,
                            const at::Tensor& fc1_bias, const at::Tensor& fc2_weight,
                            const at::Tensor& fc2_bias, const std::optional<at::Tensor>& residual,
                            const std::optional<LayerNormOutput>& normed, Use use,
                            const SharedGradientSum& fc1_sum, const SharedGradientSum& fc2_sum) {
    const at::Tensor x = x_given.contiguous();
    const at::Tensor before_gelu = empty_rows(x, fc1_weight.size(0)), y = empty_rows(x, fc2_weight.size(0));
    if (use == Use::kUnread) {
      product(x, fc1_weight, {.out = mutable_data_of<T>(before_gelu), .bias = data_of<T>(fc1_bias)});
    } else {
      const at::Tensor after = at::empty_like(before_gelu);
      const at::Tensor added = residual ? residual->contiguous() : at::Tensor();
      product(x, fc1_weight,
              {.out = mutable_data_of<T>(after),
               .bias = data_of<T>(fc1_bias),
               .linear = mutable_data_of<T>(before_gelu)});
      product(after, fc2_weight,
              {.out = mutable_data_of<T>(y),
               .bias = data_of<T>(fc2_bias),
               .residual = added.defined() ? data_of<T>(added) : nullptr});
    }
    save_with_input(ctx, {fc1_weight, fc2_weight, before_gelu}, x, normed);
    save_sum(ctx, "fc1", fc1_sum);
    save_sum(ctx, "fc2", fc2_sum);
    ctx->saved_data["added"] = residual.has_value();
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto needs = [&](auto... inputs) { return (ctx->needs_input_grad(inputs) || ...); };
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &fc1_weight = saved[0], &fc2_weight = saved[1], &before_gelu = saved[2];
    const at::Tensor gradient = gradients[0].contiguous();
    variable_list of(10);  // as forward's arguments
    if (needs(3, 4)) {
      std::tie(of[3], of[4]) = parameter_gradients<Products>(gradient, before_gelu, fc2_weight, /*gelu=*/true,
                                                             saved_sum(ctx, "fc2").get());
    }
    if (needs(0, 1, 2)) {
      const at::Tensor inner = input_gradient<Products>(gradient, fc2_weight, before_gelu);
      if (needs(1, 2)) {
        std::tie(of[1], of[2]) = parameter_gradients<Products>(inner, saved_input(ctx, saved), fc1_weight,
                                                               /*gelu=*/false, saved_sum(ctx, "fc1").get());
      }
      if (needs(0)) of[0] = input_gradient<Products>(inner, fc1_weight);
    }
    if (ctx->saved_data["added"].toBool()) of[5] = gradient;
    return of;
  }

 private:
  static void product(const at::Tensor& x, const at::Tensor& weight, const Epilogue<T>& epilogue) {
    RECORD_USER_SCOPE("tessera::linear");
    const int64_t out = weight.size(0), in = weight.size(1);
    Products::forward(data_of<T>(x), data_of<T>(weight), x.numel() / in, in, out, epilogue);
  }
};

}  // namespace

at::Tensor mlp(LayerNormOutput x, const at::Tensor& fc1_weight, const at::Tensor& fc1_bias,
               const at::Tensor& fc2_weight, const at::Tensor& fc2_bias, const at::Tensor& residual,
               bool keeps_activations, Use use) {
  const std::optional<at::Tensor> added = residual.defined() ? std::optional(residual) : std::nullopt;
  at::Tensor y;
  const auto with = [&]<typename Products>(Products) {
    const at::Tensor fc1 = fc1_weight.contiguous(), fc2 = fc2_weight.contiguous();
    y = FastMlp<Products>::apply(x.rows, fc1, fc1_bias.contiguous(), fc2, fc2_bias.contiguous(), added,
                                 keeps_activations ? std::nullopt : std::optional(x), use,
                                 gradient_sum_of(fc1), gradient_sum_of(fc2));
  };
  const bool alike = !added || added->scalar_type() == x.rows.scalar_type();
  const auto second_layer = [&](const auto& hidden) {
    return added ? linear_add(hidden, fc2_weight, fc2_bias, *added)
                 : linear(hidden, fc2_weight, fc2_bias, use);
  };
  if (!at::GradMode::is_enabled()) {  // (Two layers free what is before GELU earlier.)
    const at::Tensor hidden = linear_gelu(x, fc1_weight, fc1_bias);
    x.rows.reset();
    return second_layer(hidden);
  }
  if (alike && with_products({x.rows, fc1_weight, fc1_bias, fc2_weight, fc2_bias}, with)) return y;
  if (keeps_activations) return second_layer(linear_gelu(x.rows, fc1_weight, fc1_bias));
  const GeluOutput hidden = gelu_output(linear(x, fc1_weight, fc1_bias));
  x.rows.reset();
  return second_layer(hidden);
}

}  // namespace tessera::ops
