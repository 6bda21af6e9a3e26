// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/by_libtorch.h"

#include <ATen/ATen.h>

#include <cmath>

namespace tessera::ops::by_libtorch {
namespace {

at::Tensor scaled(const at::Tensor& gradient, double scale) {
  return scale == 1 ? gradient : gradient * scale;
}

/// Where in the moments the elements of a region find theirs: [numel] int64 each.
struct Places {
  at::Tensor row, column;
};

/// `elements`: on their device.
Places places(const Factored& t, const Region& region, const at::Tensor& elements) {
  at::Tensor rest = at::arange(region.begin, region.end, elements.options().dtype(at::kLong));
  Places found{at::zeros_like(rest), at::zeros_like(rest)};
  for (size_t dim = t.shape.size(); dim-- > 0;) {
    const auto& [begin, end] = region.box.dims[dim];
    const at::Tensor index = rest.remainder(end - begin).add_(begin);
    rest = rest.div(end - begin, "floor");
    found.row.add_(index, t.row_steps[dim]);
    found.column.add_(index, t.column_steps[dim]);
  }
  return found;
}

void add_to(double* sums, const at::Tensor& squares, const at::Tensor& place, int64_t numel) {
  const at::Tensor mine = at::zeros({numel}, squares.options()).index_add_(0, place, squares);
  at::from_blob(sums, {numel}, at::kDouble).add_(mine.to(at::kCPU));
}

}  // namespace

void adamw(at::Tensor parameter, const at::Tensor& gradient, at::Tensor exp_avg, at::Tensor exp_avg_sq,
           const AdamwOptions& o) {
  const double correction1 = 1.0 - std::pow(o.beta1, static_cast<double>(o.step));
  const double correction2 = 1.0 - std::pow(o.beta2, static_cast<double>(o.step));
  at::Tensor g = scaled(gradient, o.grad_scale);
  if (o.coupled && o.weight_decay != 0) g = g.add(parameter, o.weight_decay);
  exp_avg.mul_(o.beta1).add_(g, 1.0 - o.beta1);
  exp_avg_sq.mul_(o.beta2).addcmul_(g, g, 1.0 - o.beta2);
  const at::Tensor denominator = exp_avg_sq.sqrt().div_(std::sqrt(correction2)).add_(o.epsilon);
  if (!o.coupled) parameter.mul_(1.0 - o.lr * o.weight_decay);
  parameter.addcdiv_(exp_avg, denominator, -o.lr / correction1);
}

void adamw(at::Tensor parameter, const at::Tensor& gradient, at::Tensor exp_avg, at::Tensor exp_avg_sq,
           const at::Tensor& coefficients, bool coupled, const at::Tensor& grad_scale,
           const at::Tensor& use) {
  // In the order of AdamwCoefficients.
  const auto c = coefficients.unbind(0);
  const at::Tensor &decay = c[0], &coupled_decay = c[1], &beta1 = c[2], &one_minus_beta1 = c[3];
  const at::Tensor &beta2 = c[4], &one_minus_beta2 = c[5], &step_size = c[6], &correction = c[7];
  const at::Tensor& epsilon = c[8];
  at::Tensor g = gradient.mul(grad_scale);
  if (coupled) g.add_(parameter.mul(coupled_decay));
  const at::Tensor moment1 = exp_avg.mul(beta1).add_(g.mul(one_minus_beta1));
  const at::Tensor moment2 = exp_avg_sq.mul(beta2).add_(g.mul(g).mul_(one_minus_beta2));
  const at::Tensor denominator = moment2.sqrt().div_(correction).add_(epsilon);
  const at::Tensor values = parameter.mul(decay).sub_(moment1.div(denominator).mul_(step_size));
  const at::Tensor is_used = use.ne(0);
  const auto write = [&](const at::Tensor& to, const at::Tensor& made) {
    at::Tensor(to).copy_(at::where(is_used, made, to));
  };
  write(exp_avg, moment1);
  write(exp_avg_sq, moment2);
  write(parameter, values);
}

void sgd(at::Tensor parameter, const at::Tensor& gradient, at::Tensor velocity, const SgdOptions& o) {
  const at::Tensor g = scaled(gradient, o.grad_scale).add(parameter, o.weight_decay);
  if (!velocity.defined()) {
    parameter.sub_(g, o.lr);
    return;
  }
  velocity.mul_(o.momentum).add_(g);
  parameter.sub_(o.nesterov ? g.add(velocity, o.momentum) : velocity, o.lr);
}

void lion(at::Tensor parameter, const at::Tensor& gradient, at::Tensor exp_avg, const LionOptions& o) {
  const at::Tensor g = scaled(gradient, o.grad_scale);
  const at::Tensor direction = exp_avg.mul(o.beta1).add_(g, 1.0 - o.beta1);
  parameter.mul_(1.0 - o.lr * o.weight_decay).sub_(direction.sign(), o.lr);
  exp_avg.mul_(o.beta2).add_(g, 1.0 - o.beta2);
}

void move_average(at::Tensor average, const at::Tensor& values, double decay) {
  average.add_(values.sub(average), 1.0 - decay);
}

void add_squares(const Factored& t, const Region& region, const at::Tensor& gradient, double grad_scale,
                 double* row_sums, double* column_sums) {
  const at::Tensor squares = gradient.to(at::kDouble).mul(grad_scale).square_();
  const Places place = places(t, region, gradient);
  add_to(row_sums, squares, place.row, t.row_numel);
  add_to(column_sums, squares, place.column, t.column_numel);
}

void divide_by_root(const Factored& t, const Region& region, at::Tensor gradient, double grad_scale,
                    const at::Tensor& row, const at::Tensor& column) {
  const at::Tensor row_factors = (row / row.mean(t.second, /*keepdim=*/true)).rsqrt_().mul_(grad_scale);
  const Places place = places(t, region, gradient);
  gradient.mul_(row_factors.reshape({-1}).index_select(0, place.row))
      .mul_(column.rsqrt().reshape({-1}).index_select(0, place.column));
}

void divide_by_root(at::Tensor gradient, double grad_scale, at::Tensor squares, double decay) {
  gradient.mul_(grad_scale);
  squares.add_(gradient.square().add_(kLeastSquare).sub_(squares), 1.0 - decay);
  gradient.div_(squares.sqrt());
}

void follow(at::Tensor parameter, const at::Tensor& update, at::Tensor average, double lr, double momentum,
            double weight_decay) {
  if (average.defined()) average.add_(update.sub(average), 1.0 - momentum);
  parameter.mul_(1.0 - lr * weight_decay).sub_(average.defined() ? average : update, lr);
}

}  // namespace tessera::ops::by_libtorch
