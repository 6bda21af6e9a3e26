#include "tessera/train/rates.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>

#include "tessera/base/clock.h"
#include "tessera/ops/linear.h"

namespace tessera::train {

double measure_matmul_tflops(at::ScalarType dtype) {
  constexpr int64_t kRows = 1024, kInner = 768, kColumns = 1536;
  constexpr double kBudgetSeconds = 0.08;
  const at::NoGradGuard no_grad;
  const at::Tensor a = at::ones({kRows, kInner}, dtype), b = at::ones({kColumns, kInner}, dtype),
                   bias = at::zeros({kColumns}, dtype);
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  double best = 0, elapsed = 0;
  for (int round = 0; round < 2 || elapsed < kBudgetSeconds; ++round) {  // the first round warms up
    const auto begin = Clock::now();
    ops::linear(a, b, bias);
    const double seconds = seconds_since(begin);
    best = std::max(best, 2.0 * kRows * kInner * kColumns / seconds / 1e12);
    elapsed = seconds_since(start);
  }
  return best;
}

}  // namespace tessera::train
