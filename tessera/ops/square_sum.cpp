// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/square_sum.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "tessera/ops/cpu/every_cpu.h"
#include "tessera/ops/fast_path.h"

namespace tessera::ops {
namespace {

constexpr int64_t kPart = 1 << 16;  // elements that are added up by themselves
constexpr int64_t kLanes = 64;

float wide(float x) { return x; }
float wide(uint16_t bits_of_bf16) { return c10::detail::f32_from_bits(bits_of_bf16); }

// Sums side by side, for vectors: their order is written down here, so every CPU has the same bits.
template <typename Element>
[[gnu::always_inline]] inline double sum_of_part(const Element* x, int64_t n) {
  float sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) sums[j] += wide(x[i + j]) * wide(x[i + j]);
  }
  for (int64_t j = 0; i + j < n; ++j) sums[j] += wide(x[i + j]) * wide(x[i + j]);
  double total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

TESSERA_EVERY_CPU double of_part(const float* x, int64_t n) { return sum_of_part(x, n); }
TESSERA_EVERY_CPU double of_part(const uint16_t* x, int64_t n) { return sum_of_part(x, n); }

template <typename Element>
double on_all_threads(const at::Tensor& t) {
  const auto* x = data_of<Element>(t);
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
  if (is_for_kernels(flat) && flat.scalar_type() == at::kBFloat16) {
    return at::scalar_tensor(on_all_threads<uint16_t>(flat.contiguous()), at::kDouble);
  }
  if (flat.element_size() < 4) flat = flat.to(at::kFloat);
  if (is_for_kernels(flat) && flat.scalar_type() == at::kFloat) {
    return at::scalar_tensor(on_all_threads<float>(flat.contiguous()), at::kDouble);
  }
  return at::dot(flat, flat).to(at::kDouble);
}

at::Tensor square_sum(const std::vector<at::Tensor>& tensors) {
  if (is_for_kernels(tensors.front())) {
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (const at::Tensor& t : tensors) sum.add_(square_sum(t));
    return sum;
  }
  std::vector<at::Tensor> plain;
  for (const at::Tensor& t : tensors) plain.push_back(t.detach());
  // The squares of bf16 values are added up in fp32.
  const bool narrow = std::ranges::any_of(plain, [](const at::Tensor& t) { return t.element_size() < 4; });
  const auto dtype = narrow ? std::optional(at::kFloat) : std::nullopt;
  const at::Tensor norms = at::stack(at::_foreach_norm(plain, 2, dtype)).to(at::kDouble);
  return norms.mul(norms).sum();
}

at::Tensor square_root(const at::Tensor& scalar) {
  if (is_for_kernels(scalar)) return at::scalar_tensor(std::sqrt(scalar.item<double>()), at::kDouble);
  return scalar.sqrt();
}

}  // namespace tessera::ops
