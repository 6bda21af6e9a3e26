// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/adamw.h"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/ops/by_libtorch.h"
#include "tessera/ops/device_kernels.h"
#include "tessera/ops/every_cpu.h"
#include "tessera/ops/fast_path.h"

namespace tessera::ops {
namespace {

template <bool kCoupled>
[[gnu::always_inline]] inline void update_each(float* __restrict p, const float* __restrict g,
                                               float* __restrict m, float* __restrict v, int64_t n,
                                               const AdamwCoefficients& c) {
  for (int64_t i = 0; i < n; ++i) {
    float gradient = g[i] * c.grad_scale;
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
                              const AdamwCoefficients& c) {
  update_each<false>(p, g, m, v, n, c);
}

TESSERA_EVERY_CPU void update_coupled(float* p, const float* g, float* m, float* v, int64_t n,
                                      const AdamwCoefficients& c) {
  update_each<true>(p, g, m, v, n, c);
}

TESSERA_EVERY_CPU void widen(const uint16_t* __restrict from, float* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = c10::detail::f32_from_bits(from[i]);
}

// The nearest numbers of bf16, ties to even.
TESSERA_EVERY_CPU void narrow(const float* __restrict from, uint16_t* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = c10::detail::round_to_nearest_even(from[i]);
}

AdamwCoefficients coefficients(const AdamwOptions& o) {
  const double correction1 = 1.0 - std::pow(o.beta1, static_cast<double>(o.step));
  const double correction2 = 1.0 - std::pow(o.beta2, static_cast<double>(o.step));
  return {o.coupled ? 1.0F : static_cast<float>(1.0 - o.lr * o.weight_decay),
          static_cast<float>(o.weight_decay),
          static_cast<float>(o.beta1),
          static_cast<float>(1.0 - o.beta1),
          static_cast<float>(o.beta2),
          static_cast<float>(1.0 - o.beta2),
          static_cast<float>(o.lr / correction1),
          static_cast<float>(std::sqrt(correction2)),
          static_cast<float>(o.epsilon),
          static_cast<float>(o.grad_scale)};
}

/// The device has a kernel that writes such a copy on the way.
bool is_for_device(const at::Tensor& parameter, const at::Tensor& copy) {
  if (device_kernels(parameter, &DeviceKernels::adamw) == nullptr) return false;
  return !copy.defined() || (copy.device() == parameter.device() &&
                             (copy.scalar_type() == at::kBFloat16 || copy.scalar_type() == at::kHalf));
}

}  // namespace

void adamw(at::Tensor parameter, const at::Tensor& given, at::Tensor exp_avg, at::Tensor exp_avg_sq,
           const AdamwOptions& o, at::Tensor copy) {
  const bool widens = is_for_kernels(parameter) && is_for_kernels(given, at::kBFloat16);
  const at::Tensor gradient = widens ? given : given.to(at::kFloat);
  TESSERA_CHECK(parameter.is_contiguous() && gradient.is_contiguous());
  TESSERA_CHECK_EQ(parameter.numel(), gradient.numel());
  if (copy.defined()) TESSERA_CHECK_EQ(copy.numel(), parameter.numel());
  const bool fused = is_for_device(parameter, copy);
  if (!fused && !is_for_kernels(parameter)) {
    by_libtorch::adamw(parameter, gradient, exp_avg, exp_avg_sq, o);
    if (copy.defined()) copy.copy_(parameter);
    return;
  }
  AdamwPass pass{.count = parameter.numel(),
                 .parameter = parameter.data_ptr<float>(),
                 .gradient = widens ? nullptr : gradient.const_data_ptr<float>(),
                 .exp_avg = exp_avg.data_ptr<float>(),
                 .exp_avg_sq = exp_avg_sq.data_ptr<float>(),
                 .copy_number = Number::kBFloat16,
                 .copy = nullptr,
                 .coupled = o.coupled && o.weight_decay != 0,
                 .by = coefficients(o)};
  if (fused) {
    if (copy.defined()) {
      pass.copy_number = *number_of(copy);
      pass.copy = copy.mutable_data_ptr();
    }
    const DeviceKernels& kernels = *device_kernels(parameter);
    return kernels.adamw(pass, KernelStream(kernels, parameter));
  }
  const bool narrows = copy.defined() && is_for_kernels(copy, at::kBFloat16) && copy.is_contiguous();
  uint16_t* narrowed = narrows ? mutable_data_of<uint16_t>(copy) : nullptr;
  const uint16_t* narrow_gradient = widens ? data_of<uint16_t>(gradient) : nullptr;
  constexpr int64_t kPiece = 2048;  // which passes find in the L1 cache
  at::parallel_for(0, pass.count, kGrain, [&](int64_t begin, int64_t end) {
    float wide[kPiece];
    for (int64_t first = begin; first < end; first += kPiece) {
      const int64_t count = std::min(kPiece, end - first);
      if (widens) widen(narrow_gradient + first, wide, count);
      (pass.coupled ? update_coupled : update)(pass.parameter + first, widens ? wide : pass.gradient + first,
                                               pass.exp_avg + first, pass.exp_avg_sq + first, count, pass.by);
      if (narrows) narrow(pass.parameter + first, narrowed + first, count);
    }
  });
  if (copy.defined() && !narrows) copy.copy_(parameter);
}

}  // namespace tessera::ops
