#include "tessera/ops/adamw.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "tessera/base/error.h"

namespace tessera::ops {
namespace {

struct Coefficients {
  float decay, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, sqrt_correction2, epsilon,
      grad_scale;
};

// Compiled once per instruction set, chosen when the program starts. No contraction to fused multiply-add
// (strict ISO mode), so vector body, scalar tail and every instruction set give the same bits.
__attribute__((target_clones("avx512f", "avx2", "default"))) void update(float* __restrict p,
                                                                         const float* __restrict g,
                                                                         float* __restrict m,
                                                                         float* __restrict v, int64_t n,
                                                                         const Coefficients& c) {
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = g[i] * c.grad_scale;
    const float moment1 = m[i] * c.beta1 + gradient * c.one_minus_beta1;
    const float moment2 = v[i] * c.beta2 + gradient * gradient * c.one_minus_beta2;
    m[i] = moment1;
    v[i] = moment2;
    const float denominator = __builtin_sqrtf(moment2) / c.sqrt_correction2 + c.epsilon;
    p[i] = p[i] * c.decay - c.step_size * (moment1 / denominator);
  }
}

constexpr int64_t kGrain = 16384;

}  // namespace

void adamw(at::Tensor parameter, const at::Tensor& gradient, at::Tensor exp_avg, at::Tensor exp_avg_sq,
           const AdamwOptions& o) {
  TESSERA_CHECK(parameter.is_contiguous() && gradient.is_contiguous());
  TESSERA_CHECK_EQ(parameter.numel(), gradient.numel());
  const double correction1 = 1.0 - std::pow(o.beta1, static_cast<double>(o.step));
  const double correction2 = 1.0 - std::pow(o.beta2, static_cast<double>(o.step));
  const Coefficients c = {static_cast<float>(1.0 - o.lr * o.weight_decay),
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
    update(p + begin, g + begin, m + begin, v + begin, end - begin, c);
  });
}

}  // namespace tessera::ops
