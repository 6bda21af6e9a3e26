// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/elementwise.h"

#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/ops/by_libtorch.h"
#include "tessera/ops/cpu/every_cpu.h"
#include "tessera/ops/fast_path.h"

namespace tessera::ops {
namespace {

/// Of a step: p -= lr * (of_gradient * gradient + of_velocity * velocity).
struct Sgd {
  float lr, momentum, decay, grad_scale, of_gradient, of_velocity;
};

TESSERA_EVERY_CPU void sgd_each(float* __restrict p, const float* __restrict g, float* __restrict v,
                                int64_t n, const Sgd& c) {
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = g[i] * c.grad_scale + c.decay * p[i];
    const float velocity = v[i] * c.momentum + gradient;
    v[i] = velocity;
    p[i] -= c.lr * (c.of_gradient * gradient + c.of_velocity * velocity);
  }
}

TESSERA_EVERY_CPU void sgd_without_momentum(float* __restrict p, const float* __restrict g, int64_t n,
                                            const Sgd& c) {
  for (int64_t i = 0; i < n; ++i) p[i] -= c.lr * (g[i] * c.grad_scale + c.decay * p[i]);
}

struct Lion {
  float lr, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, grad_scale;
};

TESSERA_EVERY_CPU void lion_each(float* __restrict p, const float* __restrict g, float* __restrict m,
                                 int64_t n, const Lion& c) {
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = g[i] * c.grad_scale;
    const float direction = m[i] * c.beta1 + gradient * c.one_minus_beta1;
    const float sign = (direction > 0 ? 1.0F : 0.0F) - (direction < 0 ? 1.0F : 0.0F);
    p[i] = p[i] * c.decay - c.lr * sign;
    m[i] = m[i] * c.beta2 + gradient * c.one_minus_beta2;
  }
}

TESSERA_EVERY_CPU void average_each(float* __restrict a, const float* __restrict x, int64_t n, float share) {
  for (int64_t i = 0; i < n; ++i) a[i] += share * (x[i] - a[i]);
}

void check_alike(const at::Tensor& a, const at::Tensor& b) {
  TESSERA_CHECK(a.is_contiguous() && b.is_contiguous());
  TESSERA_CHECK_EQ(a.numel(), b.numel());
}

}  // namespace

void sgd(at::Tensor parameter, const at::Tensor& gradient, at::Tensor velocity, const SgdOptions& o) {
  check_alike(parameter, gradient);
  if (!is_for_kernels(parameter, at::kFloat)) return by_libtorch::sgd(parameter, gradient, velocity, o);
  const auto momentum = static_cast<float>(o.momentum);
  const Sgd c = {static_cast<float>(o.lr),           momentum,
                 static_cast<float>(o.weight_decay), static_cast<float>(o.grad_scale),
                 o.nesterov ? 1.0F : 0.0F,           o.nesterov ? momentum : 1.0F};
  float* p = parameter.data_ptr<float>();
  const float* g = gradient.const_data_ptr<float>();
  float* v = velocity.defined() ? velocity.data_ptr<float>() : nullptr;
  at::parallel_for(0, parameter.numel(), kGrain, [&](int64_t begin, int64_t end) {
    if (v == nullptr) {
      sgd_without_momentum(p + begin, g + begin, end - begin, c);
    } else {
      sgd_each(p + begin, g + begin, v + begin, end - begin, c);
    }
  });
}

void lion(at::Tensor parameter, const at::Tensor& gradient, at::Tensor exp_avg, const LionOptions& o) {
  check_alike(parameter, gradient);
  check_alike(parameter, exp_avg);
  if (!is_for_kernels(parameter, at::kFloat)) return by_libtorch::lion(parameter, gradient, exp_avg, o);
  const Lion c = {static_cast<float>(o.lr),        static_cast<float>(1.0 - o.lr * o.weight_decay),
                  static_cast<float>(o.beta1),     static_cast<float>(1.0 - o.beta1),
                  static_cast<float>(o.beta2),     static_cast<float>(1.0 - o.beta2),
                  static_cast<float>(o.grad_scale)};
  float* p = parameter.data_ptr<float>();
  const float* g = gradient.const_data_ptr<float>();
  float* m = exp_avg.data_ptr<float>();
  at::parallel_for(0, parameter.numel(), kGrain, [&](int64_t begin, int64_t end) {
    lion_each(p + begin, g + begin, m + begin, end - begin, c);
  });
}

void move_average(at::Tensor average, const at::Tensor& values, double decay) {
  check_alike(average, values);
  if (!is_for_kernels(average, at::kFloat)) return by_libtorch::move_average(average, values, decay);
  float* a = average.data_ptr<float>();
  const float* x = values.const_data_ptr<float>();
  const auto share = static_cast<float>(1.0 - decay);
  at::parallel_for(0, average.numel(), kGrain, [&](int64_t begin, int64_t end) {
    average_each(a + begin, x + begin, end - begin, share);
  });
}

}  // namespace tessera::ops
