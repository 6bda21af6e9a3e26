// SPDX-License-Identifier: Apache-2.0
#include "tessera/profile/rates.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>

#include "tessera/base/clock.h"
#include "tessera/eager/device.h"
#include "tessera/ops/linear.h"

namespace tessera::profile {

MatmulOperands matmul_operands(at::ScalarType dtype, at::Device device) {
  // A GPU needs a larger product: one that takes longer than its launch.
  const int64_t times = device.is_cpu() ? 1 : 8;
  const int64_t rows = 1024 * times, inner = 768 * times, columns = 1536 * times;
  at::Generator generator = at::globalContext().defaultGenerator(device).clone();
  generator.set_current_seed(1);
  const at::TensorOptions options = at::TensorOptions(dtype).device(device);
  return {at::randn({rows, inner}, generator, options), at::randn({columns, inner}, generator, options)};
}

double measure_matmul_tflops(at::ScalarType dtype, at::Device device) {
  constexpr double kBudgetSeconds = 0.08;
  const at::NoGradGuard no_grad;
  const auto [a, b] = matmul_operands(dtype, device);
  const at::Tensor bias = at::zeros({b.size(0)}, b.options());
  const double flops = 2.0 * static_cast<double>(a.numel() * b.size(0));
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  double best = 0, elapsed = 0;
  for (int round = 0; round < 2 || elapsed < kBudgetSeconds; ++round) {  // the first round warms up
    const auto begin = Clock::now();
    ops::linear(a, b, bias);
    eager::wait_for(device);
    const double seconds = seconds_since(begin);
    best = std::max(best, flops / seconds / 1e12);
    elapsed = seconds_since(start);
  }
  return best;
}

}  // namespace tessera::profile
