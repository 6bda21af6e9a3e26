// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/adafactor.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/ops/by_libtorch.h"
#include "tessera/ops/cpu/every_cpu.h"
#include "tessera/ops/fast_path.h"

namespace tessera::ops {
namespace {

constexpr int64_t kLeastFactored = 32;
constexpr auto kLeastSquare = static_cast<float>(by_libtorch::kLeastSquare);

/// Steps through the elements of `shape` without dim `missing`.
std::vector<int64_t> steps_without(const std::vector<int64_t>& shape, int64_t missing) {
  std::vector<int64_t> steps(shape.size());
  int64_t step = 1;
  for (size_t dim = shape.size(); dim-- > 0;) {
    if (static_cast<int64_t>(dim) == missing) continue;
    steps[dim] = step;
    step *= shape[dim];
  }
  return steps;
}

/// Calls body(first, count, row, column) for elements [begin, end) of a flattened box in runs along the last
/// dim: the run's first element and the places of its moments.
template <typename Body>
void over_lines(const Factored& t, const Box& box, int64_t begin, int64_t end, const Body& body) {
  const std::vector<int64_t> sizes = box.shape();
  const int64_t width = sizes.back();
  int64_t first_row = 0, first_column = 0;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    first_row += box.dims[dim].begin * t.row_steps[dim];
    first_column += box.dims[dim].begin * t.column_steps[dim];
  }
  for (int64_t at = begin; at < end;) {
    const int64_t within = at % width, count = std::min(width - within, end - at);
    int64_t rest = at / width;
    int64_t row = first_row + within * t.row_steps.back();
    int64_t column = first_column + within * t.column_steps.back();
    for (size_t dim = sizes.size() - 1; dim-- > 0;) {
      const int64_t index = rest % sizes[dim];
      rest /= sizes[dim];
      row += index * t.row_steps[dim];
      column += index * t.column_steps[dim];
    }
    body(at, count, row, column);
    at += count;
  }
}

TESSERA_EVERY_CPU void root_each(float* __restrict g, float* __restrict v, int64_t n, float grad_scale,
                                 float share) {
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = g[i] * grad_scale;
    const float squares = v[i] + share * (gradient * gradient + kLeastSquare - v[i]);
    v[i] = squares;
    g[i] = gradient / __builtin_sqrtf(squares);
  }
}

TESSERA_EVERY_CPU void follow_each(float* __restrict p, const float* __restrict u, float* __restrict m,
                                   int64_t n, float lr, float share, float decay) {
  for (int64_t i = 0; i < n; ++i) {
    const float average = m[i] + share * (u[i] - m[i]);
    m[i] = average;
    p[i] = p[i] * decay - lr * average;
  }
}

TESSERA_EVERY_CPU void follow_update(float* __restrict p, const float* __restrict u, int64_t n, float lr,
                                     float decay) {
  for (int64_t i = 0; i < n; ++i) p[i] = p[i] * decay - lr * u[i];
}

}  // namespace

std::optional<Factored> factored(const std::vector<int64_t>& shape) {
  if (shape.size() < 2) return {};
  std::vector<int64_t> dims(shape.size());
  for (size_t i = 0; i < dims.size(); ++i) dims[i] = static_cast<int64_t>(i);
  std::ranges::stable_sort(dims, {}, [&](int64_t dim) { return shape[static_cast<size_t>(dim)]; });
  Factored t;
  t.largest = dims.back();
  t.second = dims[dims.size() - 2];
  if (shape[static_cast<size_t>(t.second)] < kLeastFactored) return {};
  t.shape = t.row_shape = t.column_shape = shape;
  t.row_shape[static_cast<size_t>(t.largest)] = t.column_shape[static_cast<size_t>(t.second)] = 1;
  t.row_steps = steps_without(shape, t.largest);
  t.column_steps = steps_without(shape, t.second);
  for (const int64_t size : t.row_shape) t.row_numel *= size;
  for (const int64_t size : t.column_shape) t.column_numel *= size;
  return t;
}

void add_squares(const Factored& t, const Region& region, const at::Tensor& gradient, double grad_scale,
                 double* row_sums, double* column_sums) {
  TESSERA_CHECK_EQ(gradient.numel(), region.numel());
  if (gradient.numel() == 0) return;
  if (!is_for_kernels(gradient, at::kFloat)) {
    return by_libtorch::add_squares(t, region, gradient, grad_scale, row_sums, column_sums);
  }
  const float* g = gradient.const_data_ptr<float>() - region.begin;
  const int64_t row_step = t.row_steps.back(), column_step = t.column_steps.back();
  over_lines(t, region.box, region.begin, region.end,
             [&](int64_t first, int64_t count, int64_t row, int64_t column) {
               for (int64_t i = 0; i < count; ++i) {
                 const double value = grad_scale * static_cast<double>(g[first + i]), square = value * value;
                 row_sums[row + i * row_step] += square;
                 column_sums[column + i * column_step] += square;
               }
             });
}

void divide_by_root(const Factored& t, const Region& region, at::Tensor gradient, double grad_scale,
                    const at::Tensor& row, const at::Tensor& column) {
  TESSERA_CHECK_EQ(gradient.numel(), region.numel());
  if (gradient.numel() == 0) return;
  if (!is_for_kernels(gradient, at::kFloat)) {
    return by_libtorch::divide_by_root(t, region, gradient, grad_scale, row, column);
  }
  const at::Tensor row_factors =
      (row / row.mean(t.second, /*keepdim=*/true)).rsqrt_().mul_(grad_scale).contiguous();
  const at::Tensor column_factors = column.rsqrt().contiguous();
  float* g = gradient.data_ptr<float>();
  const float* r = row_factors.const_data_ptr<float>();
  const float* c = column_factors.const_data_ptr<float>();
  const int64_t row_step = t.row_steps.back(), column_step = t.column_steps.back();
  at::parallel_for(0, gradient.numel(), kGrain, [&](int64_t from, int64_t to) {
    over_lines(t, region.box, region.begin + from, region.begin + to,
               [&](int64_t first, int64_t count, int64_t row_at, int64_t column_at) {
                 float* line = g + (first - region.begin);
                 for (int64_t i = 0; i < count; ++i) {
                   line[i] = line[i] * r[row_at + i * row_step] * c[column_at + i * column_step];
                 }
               });
  });
}

void divide_by_root(at::Tensor gradient, double grad_scale, at::Tensor squares, double decay) {
  TESSERA_CHECK_EQ(gradient.numel(), squares.numel());
  if (!is_for_kernels(gradient, at::kFloat))
    return by_libtorch::divide_by_root(gradient, grad_scale, squares, decay);
  float* g = gradient.data_ptr<float>();
  float* v = squares.data_ptr<float>();
  at::parallel_for(0, gradient.numel(), kGrain, [&](int64_t begin, int64_t end) {
    root_each(g + begin, v + begin, end - begin, static_cast<float>(grad_scale),
              static_cast<float>(1.0 - decay));
  });
}

void follow(at::Tensor parameter, const at::Tensor& update, at::Tensor average, double lr, double momentum,
            double weight_decay) {
  if (!is_for_kernels(parameter, at::kFloat)) {
    return by_libtorch::follow(parameter, update, average, lr, momentum, weight_decay);
  }
  float* p = parameter.data_ptr<float>();
  const float* u = update.const_data_ptr<float>();
  float* m = average.defined() ? average.data_ptr<float>() : nullptr;
  const auto rate = static_cast<float>(lr), share = static_cast<float>(1.0 - momentum);
  const auto decay = static_cast<float>(1.0 - lr * weight_decay);
  at::parallel_for(0, parameter.numel(), kGrain, [&](int64_t begin, int64_t end) {
    if (m == nullptr) {
      follow_update(p + begin, u + begin, end - begin, rate, decay);
    } else {
      follow_each(p + begin, u + begin, m + begin, end - begin, rate, share, decay);
    }
  });
}

}  // namespace tessera::ops
