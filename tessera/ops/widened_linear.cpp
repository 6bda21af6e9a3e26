#include "tessera/ops/widened_linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "tessera/ops/fast_path.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Of the weight, and of the result, in fp32 at a time: 16 MiB.
constexpr int64_t kWidened = 4 << 20;

// body(first row, rows) for all rows of the weight; `x` [..., in] meets each of them.
template <typename Body>
void over_rows_of(const at::Tensor& weight, const at::Tensor& x, const Body& body) {
  const int64_t out = weight.size(0), in = weight.size(1);
  const int64_t most = std::max<int64_t>(1, kWidened / std::max(in, x.numel() / in));
  for (int64_t first = 0; first < out; first += most) body(first, std::min(most, out - first));
}

at::Tensor wide(const at::Tensor& t) { return t.to(at::kFloat); }

class WidenedLinear : public torch::autograd::Function<WidenedLinear> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_given, const at::Tensor& weight,
                            const at::Tensor& bias, const std::optional<at::Tensor>& residual, bool gelu) {
    const at::Tensor x = x_given.contiguous();
    const int64_t out = weight.size(0);
    const at::Tensor x32 = wide(x.view({-1, x.size(-1)}));
    auto shape = x.sizes().vec();
    shape.back() = out;
    const at::Tensor y = at::empty(shape, x.options());
    at::Tensor before_gelu, added;
    if (gelu) before_gelu = at::empty(shape, x.options());
    if (residual) added = residual->reshape({-1, out});
    over_rows_of(weight, x, [&](int64_t first, int64_t rows) {
      const auto columns = [&](const at::Tensor& t) { return t.view({-1, out}).narrow(1, first, rows); };
      at::Tensor part =
          at::addmm(wide(bias.narrow(0, first, rows)), x32, wide(weight.narrow(0, first, rows)).t());
      if (gelu) {
        columns(before_gelu).copy_(part);
        at::gelu_(part);
      }
      if (residual) part.add_(added.narrow(1, first, rows));
      columns(y).copy_(part);
    });
    ctx->save_for_backward({x, weight, before_gelu});
    ctx->saved_data["added"] = residual.has_value();
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &before_gelu = saved[2];
    const int64_t out = weight.size(0), in = weight.size(1);
    const at::Tensor gradient = gradients[0].reshape({-1, out});
    const bool of_x = ctx->needs_input_grad(0), of_weight = ctx->needs_input_grad(1);
    at::Tensor weight_gradient, x32, x_gradient;
    const at::Tensor bias_gradient = at::empty({out}, gradient.options());
    if (of_weight) {
      weight_gradient = at::empty_like(weight);
      x32 = wide(x.view({-1, in}));
    }
    if (of_x) x_gradient = at::zeros({gradient.size(0), in}, gradient.options().dtype(at::kFloat));
    over_rows_of(weight, x, [&](int64_t first, int64_t rows) {
      at::Tensor part = wide(gradient.narrow(1, first, rows));
      if (before_gelu.defined()) {
        at::gelu_backward_out(part, part, wide(before_gelu.view({-1, out}).narrow(1, first, rows)));
      }
      bias_gradient.narrow(0, first, rows).copy_(part.sum(0));
      if (of_weight) {
        weight_gradient.narrow(0, first, rows).copy_(at::mm(part.t(), x32));
      }
      if (of_x) {
        x_gradient.addmm_(part, wide(weight.narrow(0, first, rows)));
      }
    });
    if (of_x) x_gradient = x_gradient.to(gradient.scalar_type()).view(x.sizes());
    const bool added = ctx->saved_data["added"].toBool();
    return {x_gradient, weight_gradient, bias_gradient, added ? gradients[0] : at::Tensor(), at::Tensor()};
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
                          const std::optional<at::Tensor>& residual, bool gelu) {
  return WidenedLinear::apply(x, weight, bias, residual, gelu);
}

}  // namespace tessera::ops
