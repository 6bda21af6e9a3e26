// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/linear.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <tuple>

#include "tessera/ops/device/linear.h"
#include "tessera/ops/kept_input.h"
#include "tessera/ops/linear_products.h"
#include "tessera/ops/plain_linear.h"
#include "tessera/ops/widened_linear.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

enum class Then : int64_t { kNothing, kGelu, kAdd, kUnread };  // the last: without a product

template <typename Products>
class FastLinear : public torch::autograd::Function<FastLinear<Products>> {
  using T = typename Products::T;

 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_given, const at::Tensor& weight,
                            const at::Tensor& bias, const std::optional<at::Tensor>& residual, Then then,
                            const RecomputeFrom& made, const SharedGradientSum& sum) {
    const at::Tensor x = x_given.contiguous();
    at::Tensor y = empty_rows(x, weight.size(0)), before_gelu;
    if (then != Then::kUnread) multiply(x, weight, bias, residual, then, y, &before_gelu);
    save_with_input(ctx, {weight, before_gelu}, x, made);
    save_sum(ctx, "sum", sum);
    ctx->saved_data["added"] = then == Then::kAdd;
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& weight = saved[0];
    const at::Tensor gradient = through_gelu(gradients[0].contiguous(), saved[1]);
    at::Tensor x_gradient, weight_gradient, bias_gradient;
    if (ctx->needs_input_grad(1) || ctx->needs_input_grad(2)) {
      std::tie(weight_gradient, bias_gradient) = parameter_gradients<Products>(
          gradient, saved_input(ctx, saved), weight, /*gelu=*/false, saved_sum(ctx, "sum").get());
    }
    if (ctx->needs_input_grad(0)) x_gradient = input_gradient<Products>(gradient, weight);
    const bool added = ctx->saved_data["added"].toBool();
    return {x_gradient,   weight_gradient, bias_gradient, added ? gradients[0] : at::Tensor(),
            at::Tensor(), at::Tensor(),    at::Tensor()};
  }

 private:
  static void multiply(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       const std::optional<at::Tensor>& residual, Then then, const at::Tensor& y,
                       at::Tensor* before_gelu) {
    RECORD_USER_SCOPE("tessera::linear");
    const int64_t out = weight.size(0), in = weight.numel() / out, rows = x.numel() / in;
    Epilogue<T> epilogue{mutable_data_of<T>(y), data_of<T>(bias), nullptr, nullptr};
    at::Tensor added;
    if (then == Then::kGelu) {
      *before_gelu = empty_rows(x, out);
      epilogue.linear = mutable_data_of<T>(*before_gelu);
    } else if (then == Then::kAdd) {
      added = residual->contiguous();
      epilogue.residual = data_of<T>(added);
    }
    Products::forward(data_of<T>(x), data_of<T>(weight), rows, in, out, epilogue);
  }
  static at::Tensor through_gelu(const at::Tensor& gradient, const at::Tensor& before_gelu) {
    if (!before_gelu.defined()) return gradient;
    RECORD_USER_SCOPE("tessera::gelu_backward");
    at::Tensor inner = at::empty_like(gradient);
    at::parallel_for(0, gradient.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
      Products::gelu_backward(data_of<T>(gradient) + begin, data_of<T>(before_gelu) + begin,
                              mutable_data_of<T>(inner) + begin, end - begin);
    });
    return inner;
  }
};

Then then_of(Use use) { return use == Use::kRead ? Then::kNothing : Then::kUnread; }

// A weight of more than two dims (a patch embedding's) is a matrix [out, the rest].
at::Tensor as_matrix(const at::Tensor& weight) { return weight.dim() > 2 ? weight.flatten(1) : weight; }

// A product may have another dtype than its factors.
bool under_autocast(const at::Tensor& x) {
  const c10::DeviceType device = x.device().type();
  return at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device);
}

at::Tensor layer(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                 const std::optional<at::Tensor>& residual, Then then,
                 const RecomputeFrom& made = std::nullopt) {
  const bool alike = !residual || residual->scalar_type() == x.scalar_type();
  at::Tensor y;
  const auto with = [&]<typename Products>(Products) {
    y = FastLinear<Products>::apply(x, weight, bias, residual, then, made, gradient_sum_of(weight));
  };
  if (alike && weight.is_contiguous() && bias.is_contiguous() && with_products({x, weight, bias}, with))
    return y;
  const at::Tensor matrix = as_matrix(weight);
  if (alike && has_device_products(x, matrix, bias)) {
    return device_linear(x, matrix, bias, residual, then == Then::kGelu, made);
  }
  if (alike && should_widen(x, matrix, bias)) {
    return widened_linear(x, matrix, bias, residual, then == Then::kGelu, made);
  }
  y = made && !under_autocast(x) ? plain_linear(x, matrix, bias, made) : at::linear(x, matrix, bias);
  return then == Then::kGelu ? exact_gelu(y) : then == Then::kAdd ? *residual + y : y;
}

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, Use use) {
  return layer(x, weight, bias, std::nullopt, then_of(use));
}

at::Tensor linear_gelu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return layer(x, weight, bias, std::nullopt, Then::kGelu);
}

at::Tensor linear_add(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      const at::Tensor& residual) {
  return layer(x, weight, bias, residual, Then::kAdd);
}

at::Tensor linear(const LayerNormOutput& x, const at::Tensor& weight, const at::Tensor& bias) {
  return layer(x.rows, weight, bias, std::nullopt, Then::kNothing, x);
}

at::Tensor linear_gelu(const LayerNormOutput& x, const at::Tensor& weight, const at::Tensor& bias) {
  return layer(x.rows, weight, bias, std::nullopt, Then::kGelu, x);
}

at::Tensor linear(const GeluOutput& x, const at::Tensor& weight, const at::Tensor& bias, Use use) {
  return layer(x.rows, weight, bias, std::nullopt, then_of(use), x);
}

at::Tensor linear_add(const GeluOutput& x, const at::Tensor& weight, const at::Tensor& bias,
                      const at::Tensor& residual) {
  return layer(x.rows, weight, bias, residual, Then::kAdd, x);
}

at::Tensor linear(const BatchNormOutput& x, const at::Tensor& weight, const at::Tensor& bias) {
  const RecomputeFrom made = x.is_known() ? RecomputeFrom(x) : RecomputeFrom();
  return layer(rows_of(x.images), weight, bias, std::nullopt, Then::kNothing, made);
}

}  // namespace tessera::ops
