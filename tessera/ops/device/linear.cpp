// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/device/linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <initializer_list>

#include "tessera/device/kernel_table.h"
#include "tessera/ops/device/fault.h"
#include "tessera/ops/fast_path.h"
#include "tessera/ops/gelu.h"
#include "tessera/ops/summed_gradient.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// device::DeviceProducts::linear, by LibTorch's operations as far as the table has none.
at::Tensor product_there(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const at::Tensor& residual) {
  const device::DeviceProducts& products = *device::products_for(x.device());
  const bool adds = products.linear != nullptr && products.adds_residual;
  at::Tensor y = products.linear != nullptr ? products.linear(x, weight, bias, adds ? residual : at::Tensor())
                                            : at::linear(x, weight, bias);
  return residual.defined() && !adds ? y.add_(residual) : y;
}

/// Gradients of weight and bias.
std::pair<at::Tensor, at::Tensor> parameter_gradients_there(const SummedGradient& gradient,
                                                            const at::Tensor& x) {
  if (!gradient.sums.defined()) return device_parameter_gradients(gradient.rows, x);
  RECORD_USER_SCOPE("tessera::linear_weight_gradient");
  const auto by_device = device::products_for(x.device())->weight_gradient;
  return {by_device != nullptr ? by_device(gradient.rows, x) : at::mm(gradient.rows.t(), x), gradient.sums};
}

const GeluOutput* gelued_in(const RecomputeFrom& made) {
  return made ? std::get_if<GeluOutput>(&*made) : nullptr;
}

/// Of an input that a GELU made, `x` is the GELU's input: the way back through it is part of this function,
/// which makes the input of the weight's gradient on the way.
class DeviceLinear : public torch::autograd::Function<DeviceLinear> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, const std::optional<at::Tensor>& residual, bool gelu,
                            const RecomputeFrom& made) {
    RECORD_USER_SCOPE("tessera::linear");
    const GeluOutput* gelu_output = gelued_in(made);
    const at::Tensor rows = as_rows(gelu_output != nullptr ? gelu_output->rows : x).contiguous();
    // With a GELU between them the residual is not of the product.
    const at::Tensor added = residual && !gelu ? as_rows(*residual).contiguous() : at::Tensor();
    at::Tensor y = product_there(rows, weight.contiguous(), bias.contiguous(), added);
    at::Tensor before_gelu;
    if (gelu) {
      before_gelu = y;
      y = exact_gelu_forward(before_gelu);
      if (residual) y.add_(as_rows(*residual));
    }
    auto shape = x.sizes().vec();
    shape.back() = weight.size(0);
    save_with_input(ctx, {weight, before_gelu}, rows, made);
    ctx->saved_data["added"] = residual.has_value();
    ctx->saved_data["shape"] = x.sizes().vec();
    ctx->saved_data["after_gelu"] = gelu_output != nullptr;
    return y.view(shape);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &weight = saved[0], &before_gelu = saved[1];
    SummedGradient gradient{as_rows(gradients[0]).contiguous(), {}};
    if (before_gelu.defined()) gradient = exact_gelu_backward_and_sums(gradient.rows, before_gelu);
    const bool after_gelu = ctx->saved_data["after_gelu"].toBool(), needs_x = ctx->needs_input_grad(1);
    at::Tensor of_x, of_weight, of_bias, x;
    if (ctx->needs_input_grad(0)) {
      of_x = at::mm(gradient.rows, weight);
      if (after_gelu && needs_x) {
        x = exact_gelu_backward_and_output(of_x, as_rows(saved.back()));
      } else if (after_gelu) {
        of_x = exact_gelu_backward(of_x, as_rows(saved.back()));
      }
      of_x = of_x.view(ctx->saved_data["shape"].toIntVector());
    }
    if (needs_x) {
      if (!x.defined()) x = as_rows(saved_input(ctx, saved)).contiguous();
      std::tie(of_weight, of_bias) = parameter_gradients_there(gradient, x);
    } else if (ctx->needs_input_grad(2)) {
      of_bias = gradient.sums.defined() ? gradient.sums : gradient.rows.sum(0);
    }
    const bool added = ctx->saved_data["added"].toBool();
    return {of_x, of_weight, of_bias, added ? gradients[0] : at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

class DeviceLinearParts : public torch::autograd::Function<DeviceLinearParts> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, const RecomputeFrom& made) {
    RECORD_USER_SCOPE("tessera::linear");
    const at::Tensor rows = as_rows(x).contiguous();
    const at::Tensor y = product_there(rows, weight.contiguous(), bias.contiguous(), {});
    save_with_input(ctx, {weight}, rows, made);
    auto shape = x.sizes().vec();
    ctx->saved_data["shape"] = shape;
    shape.back() = kParts;
    shape.push_back(weight.size(0) / kParts);
    return y.view(shape).unbind(-2);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& weight = saved[0];
    const SummedGradient gradient = summed_concat(gradients);
    at::Tensor of_x, of_weight, of_bias = gradient.sums;
    if (ctx->needs_input_grad(0)) {
      of_x = at::mm(gradient.rows, weight).view(ctx->saved_data["shape"].toIntVector());
    }
    if (ctx->needs_input_grad(1)) {
      const at::Tensor x = as_rows(saved_input(ctx, saved)).contiguous();
      std::tie(of_weight, of_bias) = parameter_gradients_there(gradient, x);
    }
    return {of_x, of_weight, of_bias, at::Tensor()};
  }

 private:
  static constexpr int64_t kParts = device::ConcatSums::kParts;
};

/// Inputs of a small layer, for a comparison.
struct Layer {
  at::Tensor x, weight, bias, residual;  // [rows, in], [out, in], [out], [rows, out]

  Layer(int64_t rows, int64_t in, int64_t out, at::Device device) {
    const auto values = [&](at::IntArrayRef shape, double step) {
      return test_values(shape, step, at::TensorOptions(device).dtype(at::kBFloat16));
    };
    x = values({rows, in}, 0.7);
    weight = values({out, in}, 1.3);
    bias = values({out}, 2.1);
    residual = values({rows, out}, 0.3);
  }
};

using Results = std::vector<Result>;
using OfLayer = std::function<Results(const Layer&)>;

/// A fault of the product unless `compute` makes of two small layers, one of odd sizes, what `expect` does.
std::string product_fault(const char* name, at::Device device, const OfLayer& compute,
                          const OfLayer& expect) {
  return fault("product", name, [&] {
    Results found, expected;
    for (const Layer& layer : {Layer(48, 64, 80, device), Layer(7, 33, 50, device)}) {
      for (Result& result : compute(layer)) found.push_back(std::move(result));
      for (Result& result : expect(layer)) expected.push_back(std::move(result));
    }
    return differences(found, expected);
  });
}

Results product_results(std::initializer_list<std::pair<const char*, at::Tensor>> values) {
  constexpr double kTolerance = 0.02;  // bf16's rounding, and sums in a different order
  Results results;
  for (const auto& [what, tensor] : values) results.push_back({what, kTolerance, tensor});
  return results;
}

}  // namespace

std::vector<std::string> remove_faulty(device::DeviceProducts& products, at::Device device) {
  const at::NoGradGuard no_grad;
  std::vector<std::string> faults;
  const auto is_right = [&](const char* name, const OfLayer& compute, const OfLayer& expect) {
    const std::string found = product_fault(name, device, compute, expect);
    if (!found.empty()) faults.push_back(found);
    return found.empty();
  };
  const auto linear = [](const Layer& l) {
    return product_results({{"result", at::linear(l.x, l.weight, l.bias)}});
  };
  const auto linear_there = [&](const Layer& l) {
    return product_results({{"result", products.linear(l.x, l.weight, l.bias, {})}});
  };
  const auto added = [](const Layer& l) {
    return product_results({{"result", l.residual + at::linear(l.x, l.weight, l.bias)}});
  };
  const auto added_there = [&](const Layer& l) {
    return product_results({{"result", products.linear(l.x, l.weight, l.bias, l.residual)}});
  };
  const auto weight = [](const Layer& l) {
    return product_results({{"gradient of the weight", at::mm(l.residual.t(), l.x)}});
  };
  const auto weight_there = [&](const Layer& l) {
    return product_results({{"gradient of the weight", products.weight_gradient(l.residual, l.x)}});
  };
  const auto gradients = [](const Layer& l) {
    return product_results({{"gradient of the weight", at::mm(l.residual.t(), l.x)},
                            {"gradient of the bias", l.residual.sum(0)}});
  };
  const auto gradients_there = [&](const Layer& l) {
    const auto [of_weight, of_bias] = products.parameter_gradients(l.residual, l.x);
    return product_results({{"gradient of the weight", of_weight}, {"gradient of the bias", of_bias}});
  };
  if (products.linear != nullptr) {
    products.adds_residual = products.adds_residual && is_right("linear with residual", added_there, added);
    if (!is_right("linear", linear_there, linear)) products.linear = nullptr;
  }
  if (products.parameter_gradients != nullptr &&
      !is_right("parameter gradients", gradients_there, gradients)) {
    products.parameter_gradients = nullptr;
  }
  if (products.weight_gradient != nullptr && !is_right("weight gradient", weight_there, weight)) {
    products.weight_gradient = nullptr;
  }
  return faults;
}

bool has_device_products(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const auto fits = [](const at::Tensor& t) {
    return device::products_for(t.device()) != nullptr && t.scalar_type() == at::kBFloat16 && t.numel() > 0;
  };
  return fits(x) && fits(weight) && fits(bias);
}

std::pair<at::Tensor, at::Tensor> device_parameter_gradients(const at::Tensor& gradient,
                                                             const at::Tensor& x) {
  RECORD_USER_SCOPE("tessera::linear_weight_gradient");
  const auto by_device = device::products_for(x.device())->parameter_gradients;
  return by_device != nullptr ? by_device(gradient, x) : std::pair(at::mm(gradient.t(), x), gradient.sum(0));
}

at::Tensor device_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const std::optional<at::Tensor>& residual, bool gelu, const RecomputeFrom& made) {
  const GeluOutput* gelu_output = gelued_in(made);
  return DeviceLinear::apply(gelu_output != nullptr ? gelu_output->x : x, weight, bias, residual, gelu, made);
}

bool has_device_linear_parts(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return has_device_products(x, weight, bias) && weight.dim() == 2 &&
         weight.size(0) % device::ConcatSums::kParts == 0 && has_summed_concat(x);
}

std::vector<at::Tensor> device_linear_parts(const at::Tensor& x, const at::Tensor& weight,
                                            const at::Tensor& bias, const RecomputeFrom& made) {
  return DeviceLinearParts::apply(x, weight, bias, made);
}

}  // namespace tessera::ops
