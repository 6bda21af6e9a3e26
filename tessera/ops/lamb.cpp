// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/lamb.h"

#include <ATen/ATen.h>

#include <cmath>

namespace tessera::ops {

void lamb_direction(at::Tensor direction, const at::Tensor& parameter, const at::Tensor& gradient,
                    at::Tensor exp_avg, at::Tensor exp_avg_sq, const LambOptions& o) {
  const auto step = static_cast<double>(o.step);
  const at::Tensor g = o.grad_scale == 1 ? gradient : gradient * o.grad_scale;
  exp_avg.mul_(o.beta1).add_(g, 1 - o.beta1);
  exp_avg_sq.mul_(o.beta2).addcmul_(g, g, 1 - o.beta2);
  const at::Tensor root = (exp_avg_sq / (1 - std::pow(o.beta2, step))).sqrt_().add_(o.epsilon);
  at::div_out(direction, exp_avg / (1 - std::pow(o.beta1, step)), root);
  if (o.weight_decay != 0) direction.add_(parameter, o.weight_decay);
}

double trust_ratio(double parameter_norm, double direction_norm) {
  return parameter_norm > 0 && direction_norm > 0 ? parameter_norm / direction_norm : 1.0;
}

}  // namespace tessera::ops
