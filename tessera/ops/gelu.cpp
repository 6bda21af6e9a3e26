// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/gelu.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/base/error.h"
#include "tessera/device/kernels.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const device::DeviceKernels* gelu_kernels(const at::Tensor& x) {
  return device::number_of(x)
             ? device::kernels_for(x, &device::DeviceKernels::gelu, &device::DeviceKernels::gelu_backward)
             : nullptr;
}

/// Of contiguous tensors of one dtype; `y` may be undefined, and `of_x` be `gradient`.
void run_gelu_backward(const device::DeviceKernels& kernels, const at::Tensor& gradient, const at::Tensor& x,
                       const at::Tensor& of_x, const at::Tensor& y) {
  RECORD_USER_SCOPE("tessera::gelu_backward");
  kernels.gelu_backward({.number = *device::number_of(x),
                         .count = x.numel(),
                         .gradient = gradient.const_data_ptr(),
                         .x = x.const_data_ptr(),
                         .of_x = of_x.mutable_data_ptr(),
                         .y = y.defined() ? y.mutable_data_ptr() : nullptr},
                        device::KernelStream(kernels, x));
}

/// By the device's kernels.
class DeviceGelu : public torch::autograd::Function<DeviceGelu> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    ctx->save_for_backward({x});
    return exact_gelu_forward(x);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    return {exact_gelu_backward(gradients[0], ctx->get_saved_variables()[0])};
  }
};

}  // namespace

at::Tensor exact_gelu(const at::Tensor& x) {
  return gelu_kernels(x) != nullptr ? DeviceGelu::apply(x) : at::gelu(x);
}

at::Tensor exact_gelu_forward(const at::Tensor& given) {
  const device::DeviceKernels* kernels = gelu_kernels(given);
  if (kernels == nullptr) return at::gelu(given);
  RECORD_USER_SCOPE("tessera::gelu");
  const at::Tensor x = given.contiguous(), y = at::empty_like(x);
  kernels->gelu({.number = *device::number_of(x),
                 .count = x.numel(),
                 .x = x.const_data_ptr(),
                 .y = y.mutable_data_ptr()},
                device::KernelStream(*kernels, x));
  return y;
}

at::Tensor exact_gelu_backward(const at::Tensor& gradient, const at::Tensor& given) {
  const device::DeviceKernels* kernels = gelu_kernels(given);
  if (kernels == nullptr || gradient.scalar_type() != given.scalar_type())
    return at::gelu_backward(gradient, given);
  const at::Tensor x = given.contiguous(), of_x = at::empty_like(x);
  run_gelu_backward(*kernels, gradient.contiguous(), x, of_x, {});
  return of_x;
}

at::Tensor exact_gelu_backward_and_output(const at::Tensor& gradient, const at::Tensor& given) {
  TESSERA_CHECK(gradient.is_contiguous(), "a gradient with strides ", gradient.strides());
  const device::DeviceKernels* kernels = gelu_kernels(given);
  if (kernels == nullptr || gradient.scalar_type() != given.scalar_type()) {
    at::Tensor of_x = gradient;
    at::gelu_backward_out(of_x, gradient, given);
    return at::gelu(given);
  }
  const at::Tensor x = given.contiguous(), y = at::empty_like(x);
  run_gelu_backward(*kernels, gradient, x, gradient, y);
  return y;
}

SummedGradient exact_gelu_backward_and_sums(const at::Tensor& gradient_given, const at::Tensor& x_given) {
  const device::DeviceKernels* kernels = device::kernels_for(x_given, &device::DeviceKernels::sum_parts,
                                                             &device::DeviceKernels::gelu_backward_sums);
  if (kernels == nullptr || !device::number_of(x_given) ||
      gradient_given.scalar_type() != x_given.scalar_type())
    return {exact_gelu_backward(gradient_given, x_given), {}};
  RECORD_USER_SCOPE("tessera::gelu_backward");
  const at::Tensor gradient = gradient_given.contiguous(), x = x_given.contiguous();
  const int64_t rows = x.size(0), width = x.size(1);
  const SummedGradient result{at::empty_like(x), at::empty({width}, x.options())};
  const at::Tensor partial =
      at::empty({kernels->sum_parts(rows, width), width}, x.options().dtype(at::kFloat));
  kernels->gelu_backward_sums({.number = *device::number_of(x),
                               .rows = rows,
                               .width = width,
                               .gradient = gradient.const_data_ptr(),
                               .x = x.const_data_ptr(),
                               .of_x = result.rows.mutable_data_ptr(),
                               .partial = partial.mutable_data_ptr<float>(),
                               .sums = result.sums.mutable_data_ptr()},
                              device::KernelStream(*kernels, x));
  return result;
}

}  // namespace tessera::ops
