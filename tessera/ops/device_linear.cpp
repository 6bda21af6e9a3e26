// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/device_linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>

#include "tessera/base/error.h"
#include "tessera/ops/fast_path.h"
#include "tessera/ops/fault.h"
#include "tessera/ops/of_device.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

OfDevice<const DeviceProducts*> products_in_use;

class DeviceLinear : public torch::autograd::Function<DeviceLinear> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, const std::optional<at::Tensor>& residual, bool gelu,
                            const MadeBy& made) {
    RECORD_USER_SCOPE("tessera::linear");
    const at::Tensor rows = as_rows(x).contiguous();
    // With a GELU between them the residual is not of the product.
    const at::Tensor added = residual && !gelu ? as_rows(*residual).contiguous() : at::Tensor();
    at::Tensor y =
        products_in_use.get(x.device())->linear(rows, weight.contiguous(), bias.contiguous(), added);
    at::Tensor before_gelu;
    if (gelu) {
      before_gelu = y;
      y = at::gelu(before_gelu);
      if (residual) y.add_(as_rows(*residual));
    }
    auto shape = x.sizes().vec();
    shape.back() = weight.size(0);
    save_with_input(ctx, {weight, before_gelu}, rows, made);
    ctx->saved_data["added"] = residual.has_value();
    ctx->saved_data["shape"] = x.sizes().vec();
    return y.view(shape);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &weight = saved[0], &before_gelu = saved[1];
    at::Tensor gradient = as_rows(gradients[0]).contiguous();
    if (before_gelu.defined()) gradient = at::gelu_backward(gradient, before_gelu);
    at::Tensor of_x, of_weight, of_bias;
    if (ctx->needs_input_grad(0)) {
      of_x = at::mm(gradient, weight).view(ctx->saved_data["shape"].toIntVector());
    }
    if (ctx->needs_input_grad(1)) {
      const at::Tensor x = as_rows(saved_input(ctx, saved)).contiguous();
      std::tie(of_weight, of_bias) = device_parameter_gradients(gradient, x);
    } else if (ctx->needs_input_grad(2)) {
      of_bias = gradient.sum(0);
    }
    const bool added = ctx->saved_data["added"].toBool();
    return {of_x, of_weight, of_bias, added ? gradients[0] : at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

/// Numbers between -1 and 1 that no transposed or forgotten factor leaves as they are.
at::Tensor numbers(at::IntArrayRef shape, double step, at::Device device) {
  const int64_t count = c10::multiply_integers(shape);
  return at::arange(count, at::TensorOptions(device).dtype(at::kFloat))
      .mul_(step)
      .sin_()
      .view(shape)
      .to(at::kBFloat16);
}

/// "" or what of it is not `expected` but for bf16's rounding.
std::string difference(const char* what, const at::Tensor& found, const at::Tensor& expected) {
  if (found.sizes() != expected.sizes()) return concat(what, " of other sizes");
  const at::Tensor exact = expected.to(at::kFloat);
  const at::Tensor most = (found.to(at::kFloat) - exact).abs().max() / exact.abs().max();
  const auto share = most.item<double>();
  return share < 0.02 ? "" : concat(what, " that differ by ", share, " of the largest value");
}

std::string fault_of(const DeviceProducts& products, at::Device device, int64_t rows, int64_t in,
                     int64_t out) {
  const at::Tensor x = numbers({rows, in}, 0.7, device), weight = numbers({out, in}, 1.3, device);
  const at::Tensor bias = numbers({out}, 2.1, device), residual = numbers({rows, out}, 0.3, device);
  const at::Tensor plain = at::linear(x, weight, bias);
  const auto [of_weight, of_bias] = products.parameter_gradients(residual, x);
  const std::array<std::string, 4> faults = {
      difference("products", products.linear(x, weight, bias, {}), plain),
      difference("products with a residual", products.linear(x, weight, bias, residual), residual + plain),
      difference("gradients of a weight", of_weight, at::mm(residual.t(), x)),
      difference("gradients of a bias", of_bias, residual.sum(0))};
  for (const std::string& fault : faults) {
    if (!fault.empty()) return fault;
  }
  return {};
}

}  // namespace

std::string fault_of(const DeviceProducts& products, at::Device device) {
  const at::NoGradGuard no_grad;
  return said_or_thrown([&] {
    const std::string fault = fault_of(products, device, 48, 64, 80);
    return fault.empty() ? fault_of(products, device, 7, 33, 50) : fault;
  });
}

void use_device_products(const DeviceProducts* products, c10::DeviceType device) {
  products_in_use.set(products, device);
}

bool has_device_products(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const auto fits = [](const at::Tensor& t) {
    return products_in_use.get(t.device()) != nullptr && t.scalar_type() == at::kBFloat16 && t.numel() > 0;
  };
  return fits(x) && fits(weight) && fits(bias);
}

std::pair<at::Tensor, at::Tensor> device_parameter_gradients(const at::Tensor& gradient,
                                                             const at::Tensor& x) {
  RECORD_USER_SCOPE("tessera::linear_weight_gradient");
  return products_in_use.get(x.device())->parameter_gradients(gradient, x);
}

at::Tensor device_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const std::optional<at::Tensor>& residual, bool gelu, const MadeBy& made) {
  return DeviceLinear::apply(x, weight, bias, residual, gelu, made);
}

}  // namespace tessera::ops
