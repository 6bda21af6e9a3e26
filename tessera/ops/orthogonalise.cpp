// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/orthogonalise.h"

#include <ATen/ATen.h>

namespace tessera::ops {

at::ScalarType orthogonalise_dtype(at::Device device, at::ScalarType dtype) {
  return device.is_cuda() && dtype == at::kFloat ? at::kBFloat16 : dtype;
}

at::Tensor orthogonalised(const at::Tensor& matrix, at::ScalarType compute) {
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
  constexpr int kSteps = 5;
  const bool tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = tall ? matrix.t() : matrix;  // the product with itself is that of the short sides
  x = (x / x.norm().clamp_min(1e-7)).to(compute);
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor squared = x.mm(x.t());
    x = at::addmm(x, at::addmm(squared, squared, squared, kB, kC), x, kA);
  }
  return (tall ? x.t() : x).to(matrix.scalar_type()).contiguous();
}

}  // namespace tessera::ops
