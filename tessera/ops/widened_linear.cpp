// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/widened_linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "tessera/ops/fast_path.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Of x and of the weight, rows in fp32 at a time: enough for a product's speed to hide what converting costs.
constexpr int64_t kRows = 512;

// body(first, rows) for all rows of the matrix, at most kRows at a time.
template <typename Body>
void over_pieces(const at::Tensor& matrix, const Body& body) {
  const int64_t all = matrix.size(0);
  for (int64_t first = 0; first < all; first += kRows) body(first, std::min(kRows, all - first));
}

at::Tensor wide(const at::Tensor& t) { return t.to(at::kFloat); }
at::Tensor wide_rows(const at::Tensor& t, int64_t first, int64_t rows) {
  return wide(t.narrow(0, first, rows));
}

// x [rows, in], weight [out, in], result [rows, out].
at::Tensor forward_of(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      const at::Tensor& residual, const at::Tensor& before_gelu) {
  const at::Tensor y = at::empty({x.size(0), weight.size(0)}, x.options());
  over_pieces(x, [&](int64_t row, int64_t rows) {
    const at::Tensor x32 = wide_rows(x, row, rows);
    over_pieces(weight, [&](int64_t column, int64_t columns) {
      const auto piece = [&](const at::Tensor& t) {
        return t.narrow(0, row, rows).narrow(1, column, columns);
      };
      at::Tensor part =
          at::addmm(wide_rows(bias, column, columns), x32, wide_rows(weight, column, columns).t());
      if (before_gelu.defined()) {
        const at::Tensor rounded = piece(before_gelu).copy_(part);
        at::gelu_(part.copy_(rounded));
      }
      if (residual.defined()) part.add_(piece(residual));
      piece(y).copy_(part);
    });
  });
  return y;
}

at::Tensor weight_gradient_of(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight) {
  at::Tensor result = at::empty_like(weight);
  over_pieces(weight, [&](int64_t column, int64_t columns) {
    at::Tensor sum = at::zeros({columns, weight.size(1)}, weight.options().dtype(at::kFloat));
    over_pieces(x, [&](int64_t row, int64_t rows) {
      sum.addmm_(wide_rows(gradient.narrow(1, column, columns), row, rows).t(), wide_rows(x, row, rows));
    });
    result.narrow(0, column, columns).copy_(sum);
  });
  return result;
}

at::Tensor input_gradient_of(const at::Tensor& gradient, const at::Tensor& weight) {
  at::Tensor result = at::empty({gradient.size(0), weight.size(1)}, gradient.options());
  over_pieces(gradient, [&](int64_t row, int64_t rows) {
    at::Tensor sum = at::zeros({rows, weight.size(1)}, gradient.options().dtype(at::kFloat));
    over_pieces(weight, [&](int64_t column, int64_t columns) {
      sum.addmm_(wide_rows(gradient.narrow(1, column, columns), row, rows),
                 wide_rows(weight, column, columns));
    });
    result.narrow(0, row, rows).copy_(sum);
  });
  return result;
}

class WidenedLinear : public torch::autograd::Function<WidenedLinear> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, const std::optional<at::Tensor>& residual, bool gelu,
                            const RecomputeFrom& made) {
    const at::Tensor rows = as_rows(x);
    at::Tensor before_gelu, added;
    if (gelu) before_gelu = at::empty({rows.size(0), weight.size(0)}, x.options());
    if (residual) added = as_rows(*residual);
    auto shape = x.sizes().vec();
    shape.back() = weight.size(0);
    save_with_input(ctx, {weight, before_gelu}, rows, made);
    ctx->saved_data["added"] = residual.has_value();
    ctx->saved_data["shape"] = x.sizes().vec();
    return forward_of(rows, weight, bias, added, before_gelu).view(shape);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &weight = saved[0], &before_gelu = saved[1];
    at::Tensor gradient = as_rows(gradients[0]);
    if (before_gelu.defined()) gradient = at::gelu_backward(gradient, before_gelu);
    at::Tensor x_gradient, weight_gradient;
    if (ctx->needs_input_grad(0)) {
      x_gradient = input_gradient_of(gradient, weight).view(ctx->saved_data["shape"].toIntVector());
    }
    if (ctx->needs_input_grad(1)) {
      weight_gradient = weight_gradient_of(gradient, as_rows(saved_input(ctx, saved)), weight);
    }
    const at::Tensor bias_gradient =
        gradient.sum(0, /*keepdim=*/false, at::kFloat).to(gradient.scalar_type());
    const bool added = ctx->saved_data["added"].toBool();
    return {x_gradient,   weight_gradient, bias_gradient, added ? gradients[0] : at::Tensor(),
            at::Tensor(), at::Tensor()};
  }
};

}  // namespace

bool should_widen(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const auto fits = [](const at::Tensor& t) {
    return is_for_kernels(t) && t.scalar_type() == at::kBFloat16 && t.numel() > 0;
  };
  return fits(x) && fits(weight) && fits(bias) && !cpu_has_bf16();
}

at::Tensor widened_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const std::optional<at::Tensor>& residual, bool gelu, const RecomputeFrom& made) {
  return WidenedLinear::apply(x, weight, bias, residual, gelu, made);
}

}  // namespace tessera::ops
