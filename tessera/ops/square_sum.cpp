#include "tessera/ops/square_sum.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "tessera/ops/every_cpu.h"

namespace tessera::ops {
namespace {

constexpr int64_t kPart = 1 << 16;  // elements that are added up by themselves
constexpr int64_t kLanes = 64;

// Sums side by side, for vectors: their order is written down here, so every CPU has the same bits.
TESSERA_EVERY_CPU double of_part(const float* x, int64_t n) {
  float sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) sums[j] += x[i + j] * x[i + j];
  }
  for (int64_t j = 0; i + j < n; ++j) sums[j] += x[i + j] * x[i + j];
  double total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

double on_all_threads(const at::Tensor& t) {
  const float* x = t.const_data_ptr<float>();
  std::vector<double> sums(static_cast<size_t>((t.numel() + kPart - 1) / kPart));
  at::parallel_for(0, static_cast<int64_t>(sums.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t first = part * kPart;
      sums[static_cast<size_t>(part)] = of_part(x + first, std::min(kPart, t.numel() - first));
    }
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace

at::Tensor square_sum(const at::Tensor& t) {
  at::Tensor flat = t.detach().reshape({-1});
  if (flat.element_size() < 4) flat = flat.to(at::kFloat);
  if (flat.is_cpu() && flat.scalar_type() == at::kFloat) {
    return at::scalar_tensor(on_all_threads(flat.contiguous()), at::kDouble);
  }
  return at::dot(flat, flat).to(at::kDouble);
}

}  // namespace tessera::ops
