// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/adamw.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/device/kernels.h"
#include "tessera/ops/by_libtorch.h"
#include "tessera/ops/cpu/every_cpu.h"
#include "tessera/ops/fast_path.h"

namespace tessera::ops {
namespace {

template <bool kCoupled>
[[gnu::always_inline]] inline void update_each(float* __restrict p, const float* __restrict g,
                                               float* __restrict m, float* __restrict v, int64_t n,
                                               const device::AdamwCoefficients& c, float grad_scale) {
  for (int64_t i = 0; i < n; ++i) {
    float gradient = g[i] * grad_scale;
    if constexpr (kCoupled) gradient += c.coupled_decay * p[i];
    const float moment1 = m[i] * c.beta1 + gradient * c.one_minus_beta1;
    const float moment2 = v[i] * c.beta2 + gradient * gradient * c.one_minus_beta2;
    m[i] = moment1;
    v[i] = moment2;
    const float denominator = __builtin_sqrtf(moment2) / c.sqrt_correction2 + c.epsilon;
    p[i] = p[i] * c.decay - c.step_size * (moment1 / denominator);
  }
}

TESSERA_EVERY_CPU void update(float* p, const float* g, float* m, float* v, int64_t n,
                              const device::AdamwCoefficients& c, float grad_scale) {
  update_each<false>(p, g, m, v, n, c, grad_scale);
}

TESSERA_EVERY_CPU void update_coupled(float* p, const float* g, float* m, float* v, int64_t n,
                                      const device::AdamwCoefficients& c, float grad_scale) {
  update_each<true>(p, g, m, v, n, c, grad_scale);
}

TESSERA_EVERY_CPU void widen(const uint16_t* __restrict from, float* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = c10::detail::f32_from_bits(from[i]);
}

// The nearest numbers of bf16, ties to even.
TESSERA_EVERY_CPU void narrow(const float* __restrict from, uint16_t* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = c10::detail::round_to_nearest_even(from[i]);
}

device::AdamwCoefficients coefficients_of(const AdamwOptions& o) {
  const double correction1 = 1.0 - std::pow(o.beta1, static_cast<double>(o.step));
  const double correction2 = 1.0 - std::pow(o.beta2, static_cast<double>(o.step));
  return {o.coupled ? 1.0F : static_cast<float>(1.0 - o.lr * o.weight_decay),
          o.coupled ? static_cast<float>(o.weight_decay) : 0.0F,
          static_cast<float>(o.beta1),
          static_cast<float>(1.0 - o.beta1),
          static_cast<float>(o.beta2),
          static_cast<float>(1.0 - o.beta2),
          static_cast<float>(o.lr / correction1),
          static_cast<float>(std::sqrt(correction2)),
          static_cast<float>(o.epsilon)};
}

/// The device has a kernel that writes such a copy on the way.
bool is_for_device(const at::Tensor& parameter, const at::Tensor& copy) {
  if (device::kernels_for(parameter, &device::DeviceKernels::adamw) == nullptr) return false;
  return !copy.defined() || (copy.device() == parameter.device() &&
                             (copy.scalar_type() == at::kBFloat16 || copy.scalar_type() == at::kHalf));
}

/// The tensors of an update, checked, with the gradient in a dtype that the update reads.
struct Shard {
  at::Tensor parameter, gradient, exp_avg, exp_avg_sq, copy;

  bool widens() const { return gradient.scalar_type() == at::kBFloat16; }
  Shard part(int64_t begin, int64_t end) const {
    const auto of = [&](const at::Tensor& t) { return t.defined() ? t.narrow(0, begin, end - begin) : t; };
    return {of(parameter), of(gradient), of(exp_avg), of(exp_avg_sq), of(copy)};
  }
  /// For a kernel of the device's.
  device::AdamwPass pass() const {
    return {.count = parameter.numel(),
            .parameter = parameter.data_ptr<float>(),
            .gradient_number = *device::number_of(gradient),
            .gradient = gradient.const_data_ptr(),
            .exp_avg = exp_avg.data_ptr<float>(),
            .exp_avg_sq = exp_avg_sq.data_ptr<float>(),
            .copy_number = copy.defined() ? *device::number_of(copy) : device::Number::kBFloat16,
            .copy = copy.defined() ? copy.mutable_data_ptr() : nullptr,
            .by = {},
            .grad_scale = 1,
            .table = {}};
  }
};

Shard checked(at::Tensor parameter, const at::Tensor& given, at::Tensor exp_avg, at::Tensor exp_avg_sq,
              at::Tensor copy) {
  const at::ScalarType narrow = copy.defined() ? copy.scalar_type() : at::kBFloat16;
  const bool widens = is_for_kernels(parameter, at::kFloat)
                          ? is_for_kernels(given, at::kBFloat16)
                          : is_for_device(parameter, copy) && given.scalar_type() == narrow;
  at::Tensor gradient = widens ? given : given.to(parameter.scalar_type());
  TESSERA_CHECK(parameter.is_contiguous() && gradient.is_contiguous());
  TESSERA_CHECK_EQ(parameter.numel(), gradient.numel());
  if (copy.defined()) TESSERA_CHECK_EQ(copy.numel(), parameter.numel());
  return {std::move(parameter), std::move(gradient), std::move(exp_avg), std::move(exp_avg_sq),
          std::move(copy)};
}

/// By this room's kernel, over the intra-op threads.
void by_cpu(const Shard& shard, const device::AdamwCoefficients& by, float grad_scale) {
  const bool narrows =
      shard.copy.defined() && is_for_kernels(shard.copy, at::kBFloat16) && shard.copy.is_contiguous();
  auto* narrowed = narrows ? mutable_data_of<uint16_t>(shard.copy) : nullptr;
  const auto* narrow_gradient = shard.widens() ? data_of<uint16_t>(shard.gradient) : nullptr;
  const auto* gradient = shard.widens() ? nullptr : data_of<float>(shard.gradient);
  auto* parameter = mutable_data_of<float>(shard.parameter);
  auto* exp_avg = mutable_data_of<float>(shard.exp_avg);
  auto* exp_avg_sq = mutable_data_of<float>(shard.exp_avg_sq);
  const auto kernel = by.coupled_decay != 0 ? update_coupled : update;
  constexpr int64_t kPiece = 2048;  // which passes find in the L1 cache
  at::parallel_for(0, shard.parameter.numel(), kGrain, [&](int64_t begin, int64_t end) {
    float wide[kPiece];
    for (int64_t first = begin; first < end; first += kPiece) {
      const int64_t count = std::min(kPiece, end - first);
      if (narrow_gradient != nullptr) widen(narrow_gradient + first, wide, count);
      kernel(parameter + first, narrow_gradient != nullptr ? wide : gradient + first, exp_avg + first,
             exp_avg_sq + first, count, by, grad_scale);
      if (narrows) narrow(parameter + first, narrowed + first, count);
    }
  });
  if (shard.copy.defined() && !narrows) at::Tensor(shard.copy).copy_(shard.parameter);
}

}  // namespace

void adamw(at::Tensor parameter, const at::Tensor& given, at::Tensor exp_avg, at::Tensor exp_avg_sq,
           const AdamwOptions& o, at::Tensor copy) {
  const Shard shard =
      checked(std::move(parameter), given, std::move(exp_avg), std::move(exp_avg_sq), std::move(copy));
  if (is_for_device(shard.parameter, shard.copy)) {
    device::AdamwPass pass = shard.pass();
    pass.by = coefficients_of(o);
    pass.grad_scale = static_cast<float>(o.grad_scale);
    const device::DeviceKernels& kernels = *device::kernels_for(shard.parameter);
    return kernels.adamw(pass, device::KernelStream(kernels, shard.parameter));
  }
  if (is_for_kernels(shard.parameter, at::kFloat)) {
    return by_cpu(shard, coefficients_of(o), static_cast<float>(o.grad_scale));
  }
  by_libtorch::adamw(shard.parameter, shard.gradient, shard.exp_avg, shard.exp_avg_sq, o);
  if (shard.copy.defined()) at::Tensor(shard.copy).copy_(shard.parameter);
}

std::array<float, kAdamwCoefficients> adamw_coefficients(const AdamwOptions& options) {
  return std::bit_cast<std::array<float, kAdamwCoefficients>>(coefficients_of(options));
}

AdamwRuns::AdamwRuns(std::vector<device::AdamwRun> runs, bool coupled, c10::Device device)
    : list_(std::move(runs)), coupled_(coupled) {
  std::vector<int64_t> flat;
  for (const device::AdamwRun& run : list_) flat.insert(flat.end(), {run.begin, run.end, run.row});
  on_device_ = at::tensor(flat).to(device);
}

const device::AdamwRun* AdamwRuns::on_device() const {
  static_assert(sizeof(device::AdamwRun) == 3 * sizeof(int64_t));
  return reinterpret_cast<const device::AdamwRun*>(on_device_.const_data_ptr<int64_t>());
}

void adamw(at::Tensor parameter, const at::Tensor& given, at::Tensor exp_avg, at::Tensor exp_avg_sq,
           const AdamwRuns& runs, const AdamwOnDevice& numbers, at::Tensor copy) {
  const Shard shard =
      checked(std::move(parameter), given, std::move(exp_avg), std::move(exp_avg_sq), std::move(copy));
  if (runs.list().empty()) return;
  TESSERA_CHECK(runs.list().back().end <= shard.parameter.numel());
  if (is_for_device(shard.parameter, shard.copy)) {
    device::AdamwPass pass = shard.pass();
    const auto* rows = numbers.coefficients.const_data_ptr<float>();
    pass.table = {static_cast<int64_t>(runs.list().size()), runs.on_device(),
                  reinterpret_cast<const device::AdamwCoefficients*>(rows),
                  numbers.grad_scale.const_data_ptr<float>(), numbers.use.const_data_ptr<float>()};
    const device::DeviceKernels& kernels = *device::kernels_for(shard.parameter);
    return kernels.adamw(pass, device::KernelStream(kernels, shard.parameter));
  }
  if (!is_for_kernels(shard.parameter, at::kFloat)) {
    for (const device::AdamwRun& run : runs.list()) {
      const Shard part = shard.part(run.begin, run.end);
      by_libtorch::adamw(part.parameter, part.gradient, part.exp_avg, part.exp_avg_sq,
                         numbers.coefficients[run.row], runs.coupled(), numbers.grad_scale, numbers.use);
      if (part.copy.defined()) at::Tensor(part.copy).copy_(part.parameter);
    }
    return;
  }
  if (numbers.use.item<float>() == 0) return;
  const auto* rows = numbers.coefficients.const_data_ptr<float>();
  for (const device::AdamwRun& run : runs.list()) {
    std::array<float, kAdamwCoefficients> row{};
    std::copy_n(rows + run.row * kAdamwCoefficients, kAdamwCoefficients, row.begin());
    by_cpu(shard.part(run.begin, run.end), std::bit_cast<device::AdamwCoefficients>(row),
           numbers.grad_scale.item<float>());
  }
}

}  // namespace tessera::ops
