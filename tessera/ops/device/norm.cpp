// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/device/norm.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "tessera/device/kernels.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void* write_to(const at::Tensor& t) { return t.defined() ? t.mutable_data_ptr() : nullptr; }
const void* read_from(const at::Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; }

/// Two results, the normalised rows and their sum before that: the gradient of the second is added where the
/// gradient through the norm is made.
class DeviceNorm : public torch::autograd::Function<DeviceNorm> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x_given,
                               const at::Tensor& weight_given, const at::Tensor& bias_given,
                               const std::optional<at::Tensor>& added_given, double epsilon) {
    RECORD_USER_SCOPE("tessera::layer_norm");
    const at::Tensor x = x_given.contiguous(), weight = weight_given.contiguous(),
                     bias = bias_given.contiguous();
    const at::Tensor added = added_given ? added_given->contiguous() : at::Tensor();
    const device::DeviceKernels& kernels = *device::kernels_for(x);
    const int64_t width = weight.size(0), rows = x.numel() / width;
    const at::Tensor y = at::empty_like(x), sum = added.defined() ? at::empty_like(x) : at::Tensor();
    const at::Tensor stats = at::empty({rows, 2}, x.options().dtype(at::kFloat));
    kernels.norm_forward({.number = *device::number_of(x),
                          .rows = rows,
                          .width = width,
                          .x = read_from(x),
                          .added = read_from(added),
                          .weight = read_from(weight),
                          .bias = read_from(bias),
                          .epsilon = static_cast<float>(epsilon),
                          .sum = write_to(sum),
                          .y = write_to(y),
                          .stats = stats.mutable_data_ptr<float>()},
                         device::KernelStream(kernels, x));
    ctx->set_materialize_grads(false);
    ctx->saved_data["added"] = added.defined();
    const at::Tensor normalised = sum.defined() ? sum : x;
    ctx->save_for_backward({normalised, weight, stats});
    return {y, sum.defined() ? sum : x_given};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    RECORD_USER_SCOPE("tessera::layer_norm_backward");
    const bool added = ctx->saved_data["added"].toBool();
    if (!gradients[0].defined()) {  // the normalised rows were not used
      return {gradients[1], at::Tensor(), at::Tensor(), added ? gradients[1] : at::Tensor(), at::Tensor()};
    }
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &s = saved[0], &weight = saved[1], &stats = saved[2];
    const at::Tensor gradient = gradients[0].contiguous();
    const at::Tensor of_sum = gradients[1].defined() ? gradients[1].contiguous() : at::Tensor();
    const device::DeviceKernels& kernels = *device::kernels_for(s);
    const int64_t width = weight.size(0), rows = s.numel() / width;
    const at::Tensor of_x = at::empty_like(s);
    at::Tensor partial, of_weight, of_bias;
    if (ctx->needs_input_grad(1) || ctx->needs_input_grad(2)) {
      partial = at::empty({kernels.norm_parts(rows, width), 2, width}, stats.options());
      of_weight = at::empty_like(weight);
      of_bias = at::empty_like(weight);
    }
    kernels.norm_backward({.number = *device::number_of(s),
                           .rows = rows,
                           .width = width,
                           .gradient = read_from(gradient),
                           .of_sum = read_from(of_sum),
                           .s = read_from(s),
                           .weight = read_from(weight),
                           .stats = stats.const_data_ptr<float>(),
                           .of_x = write_to(of_x),
                           .partial = partial.defined() ? partial.mutable_data_ptr<float>() : nullptr,
                           .of_weight = write_to(of_weight),
                           .of_bias = write_to(of_bias)},
                          device::KernelStream(kernels, s));
    return {of_x, of_weight, of_bias, added ? of_x : at::Tensor(), at::Tensor()};
  }
};

}  // namespace

bool has_device_norm(const at::Tensor& x, const at::Tensor& added, const at::Tensor& weight,
                     const at::Tensor& bias) {
  const auto alike = [&](const at::Tensor& t) {
    return t.scalar_type() == x.scalar_type() && t.device() == x.device();
  };
  return device::kernels_for(x, &device::DeviceKernels::norm_forward,
                             &device::DeviceKernels::norm_backward) != nullptr &&
         device::number_of(x) && alike(weight) && alike(bias) && (!added.defined() || alike(added));
}

std::pair<at::Tensor, at::Tensor> device_norm(const at::Tensor& x, const at::Tensor& added,
                                              const at::Tensor& weight, const at::Tensor& bias,
                                              double epsilon) {
  const std::optional<at::Tensor> given = added.defined() ? std::optional(added) : std::nullopt;
  const variable_list both = DeviceNorm::apply(x, weight, bias, given, epsilon);
  return {both[0], both[1]};
}

}  // namespace tessera::ops
