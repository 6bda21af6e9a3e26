// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/rates.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>

#include "tessera/base/clock.h"
#include "tessera/ops/linear.h"
#include "tessera/train/device.h"

namespace tessera::train {

double measure_matmul_tflops(at::ScalarType dtype, at::Device device) {
  // A GPU takes a larger one to be busy with it for longer than it takes to say so.
  const int64_t times = device.is_cpu() ? 1 : 8;
  const int64_t rows = 1024 * times, inner = 768 * times, columns = 1536 * times;
  constexpr double kBudgetSeconds = 0.08;
  const at::NoGradGuard no_grad;
  const at::TensorOptions options = at::TensorOptions(dtype).device(device);
  const at::Tensor a = at::ones({rows, inner}, options), b = at::ones({columns, inner}, options),
                   bias = at::zeros({columns}, options);
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  double best = 0, elapsed = 0;
  for (int round = 0; round < 2 || elapsed < kBudgetSeconds; ++round) {  // the first round warms up
    const auto begin = Clock::now();
    ops::linear(a, b, bias);
    wait_for(device);
    const double seconds = seconds_since(begin);
    best = std::max(best, 2.0 * static_cast<double>(rows * inner * columns) / seconds / 1e12);
    elapsed = seconds_since(start);
  }
  return best;
}

}  // namespace tessera::train
