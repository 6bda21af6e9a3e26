#include "tessera/ops/adamw.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "tessera/base/error.h"
#include "tessera/ops/by_libtorch.h"
#include "tessera/ops/every_cpu.h"
#include "tessera/ops/fast_path.h"

namespace tessera::ops {
namespace {

struct Coefficients {
  float decay, coupled_decay, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, sqrt_correction2,
      epsilon, grad_scale;
};

template <bool kCoupled>
[[gnu::always_inline]] inline void update_each(float* __restrict p, const float* __restrict g,
                                               float* __restrict m, float* __restrict v, int64_t n,
                                               const Coefficients& c) {
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
                              const Coefficients& c) {
  update_each<false>(p, g, m, v, n, c);
}

TESSERA_EVERY_CPU void update_coupled(float* p, const float* g, float* m, float* v, int64_t n,
                                      const Coefficients& c) {
  update_each<true>(p, g, m, v, n, c);
}

}  // namespace

void adamw(at::Tensor parameter, const at::Tensor& gradient, at::Tensor exp_avg, at::Tensor exp_avg_sq,
           const AdamwOptions& o) {
  TESSERA_CHECK(parameter.is_contiguous() && gradient.is_contiguous());
  TESSERA_CHECK_EQ(parameter.numel(), gradient.numel());
  if (!is_for_kernels(parameter)) return by_libtorch::adamw(parameter, gradient, exp_avg, exp_avg_sq, o);
  const double correction1 = 1.0 - std::pow(o.beta1, static_cast<double>(o.step));
  const double correction2 = 1.0 - std::pow(o.beta2, static_cast<double>(o.step));
  const bool coupled = o.coupled && o.weight_decay != 0;
  const Coefficients c = {o.coupled ? 1.0F : static_cast<float>(1.0 - o.lr * o.weight_decay),
                          static_cast<float>(o.weight_decay),
                          static_cast<float>(o.beta1),
                          static_cast<float>(1.0 - o.beta1),
                          static_cast<float>(o.beta2),
                          static_cast<float>(1.0 - o.beta2),
                          static_cast<float>(o.lr / correction1),
                          static_cast<float>(std::sqrt(correction2)),
                          static_cast<float>(o.epsilon),
                          static_cast<float>(o.grad_scale)};
  float* p = parameter.data_ptr<float>();
  const float* g = gradient.const_data_ptr<float>();
  float* m = exp_avg.data_ptr<float>();
  float* v = exp_avg_sq.data_ptr<float>();
  at::parallel_for(0, parameter.numel(), kGrain, [&](int64_t begin, int64_t end) {
    (coupled ? update_coupled : update)(p + begin, g + begin, m + begin, v + begin, end - begin, c);
  });
}

}  // namespace tessera::ops
