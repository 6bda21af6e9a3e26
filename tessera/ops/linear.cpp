#include "tessera/ops/linear.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>

namespace tessera::ops {

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::linear(x, weight, bias);
}

at::Tensor linear_gelu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::gelu(at::linear(x, weight, bias));
}

at::Tensor linear_add(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      const at::Tensor& residual) {
  return residual + at::linear(x, weight, bias);
}

}  // namespace tessera::ops
