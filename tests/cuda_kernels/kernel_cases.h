// SPDX-License-Identifier: Apache-2.0
// Ops by kernels beside the plain formulas in float64, on the CPU and on GPUs (tests/cuda): sizes with and
// without whole packs, one block and many, several passes of a block.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "tessera/ops/adamw.h"
#include "tessera/ops/cross_entropy.h"
#include "tessera/ops/device/copy_runs.h"
#include "tessera/ops/fp8_linear.h"
#include "tessera/ops/gelu.h"
#include "tessera/ops/layer_norm.h"
#include "tessera/ops/summed_gradient.h"
#include "tests/ops/beside_formula.h"

namespace tessera::ops {

/// Half of a step of the dtype's, and the rounding of the sums in fp32.
inline double rounding(at::ScalarType dtype) {
  return dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 1e-3 : 6e-3;
}

struct NormCase {
  int64_t rows, width;
};
inline std::vector<NormCase> norm_cases() {
  return {{1, 3}, {3, 5}, {7, 33}, {5, 192}, {130, 64}, {2, 1024}, {3, 1029}, {2, 9000}, {70, 8}};
}

/// `used`: gradients come through the norm, through the sum, or both.
struct NormUse {
  bool added, by_norm, by_sum;
};
inline std::vector<NormUse> norm_uses() {
  return {{false, true, false},
          {false, true, true},
          {true, true, true},
          {true, true, false},
          {true, false, true}};
}

inline void expect_the_norm(const NormCase& size, const NormUse& use, at::ScalarType dtype,
                            at::Device device) {
  SCOPED_TRACE(::testing::Message() << size.rows << " x " << size.width << ' ' << dtype << ' ' << use.added
                                    << use.by_norm << use.by_sum);
  at::manual_seed(1);
  const auto values = [&](at::IntArrayRef shape, double mean) { return (at::randn(shape) + mean).to(dtype); };
  const Tensors given = {values({size.rows, size.width}, 3), values({size.rows, size.width}, -1),
                         values({size.width}, 1), values({size.width}, 0)};
  const Tensors directions = {values({size.rows, size.width}, 0), values({size.rows, size.width}, 0)};
  const auto run = [&](at::ScalarType type, at::Device where, bool plain) {
    Tensors t;
    for (const at::Tensor& g : given) t.push_back(g.to(where, type).clone().requires_grad_());
    const at::Tensor added = use.added ? t[1] : at::Tensor();
    at::Tensor y, sum;
    if (plain) {
      sum = use.added ? t[0] + t[1] : t[0];
      // What is normalised is the rounded sum.
      const at::Tensor rounded = sum.detach().to(dtype).to(type) - sum.detach() + sum;
      y = at::layer_norm(rounded, {size.width}, t[2], t[3], 1e-5);
    } else {
      const LayerNormOutput found = normed(t[0], {t[2], t[3], 1e-5}, added);
      y = found.rows;
      sum = found.x;
    }
    Tensors outputs, gradients;
    if (use.by_norm) outputs.push_back(y), gradients.push_back(directions[0].to(where, type));
    if (use.by_sum) outputs.push_back(sum), gradients.push_back(directions[1].to(where, type));
    at::Tensor total = (outputs[0] * gradients[0]).sum();
    if (outputs.size() > 1) total = total + (outputs[1] * gradients[1]).sum();
    total.backward();
    Tensors found = {y.detach(), sum.detach(), t[0].grad()};
    if (use.added) found.push_back(t[1].grad());
    if (use.by_norm) found.insert(found.end(), {t[2].grad(), t[3].grad()});
    return found;
  };
  const Tensors found = run(dtype, device, false), expected = run(at::kDouble, at::kCPU, true);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(found[i].scalar_type(), dtype) << i;
    EXPECT_EQ(found[i].device().type(), device.type()) << i;
    EXPECT_LT(error(found[i], expected[i]), rounding(dtype)) << "result " << i;
  }
}

/// Value and gradient of the cross entropy of `logits` against two labels a row, or one.
inline void expect_the_cross_entropy(int64_t rows, int64_t classes, bool two, double smoothing,
                                     at::Device device) {
  SCOPED_TRACE(::testing::Message() << rows << " x " << classes << (two ? " mixed " : " ") << smoothing);
  at::manual_seed(2);
  const at::Tensor given = at::randn({rows, classes}) * 4 + 50;
  const at::Tensor first = at::randint(classes, {rows}), second = at::randint(classes, {rows});
  second[0] = first[0];
  const at::Tensor share = at::rand({rows});
  at::Tensor target = at::full({rows, classes}, smoothing / static_cast<double>(classes), at::kDouble);
  const auto add = [&](const at::Tensor& label, const at::Tensor& part) {
    target.scatter_add_(1, label.unsqueeze(1), (part.to(at::kDouble) * (1 - smoothing)).unsqueeze(1));
  };
  add(first, two ? share : at::ones({rows}));
  if (two) add(second, 1 - share);
  const at::Tensor exact = given.to(at::kDouble).requires_grad_();
  const at::Tensor expected = -(target * at::log_softmax(exact, 1)).sum();
  const at::Tensor logits = given.to(device).clone().requires_grad_();
  const Labels labels = {first.to(device), two ? second.to(device) : at::Tensor(),
                         two ? share.to(device) : at::Tensor()};
  const at::Tensor loss = cross_entropy_sum(logits, labels, smoothing);
  (loss * 0.25).backward();
  (expected * 0.25).backward();
  EXPECT_EQ(loss.dim(), 0);
  EXPECT_LT(error(loss.detach(), expected.detach()), 3e-6);
  if (classes > 1) {
    EXPECT_LT(error(logits.grad(), exact.grad()), 3e-5);
  } else {  // it is 0, so there is no largest value to compare with; what remains are roundings of 1 - 1
    EXPECT_LT(logits.grad().abs().max().item<float>(), 1e-6F);
  }
}

struct AdamwCase {
  int64_t count, begin;  // of a longer tensor
  bool coupled;
  at::ScalarType copy;
};
inline std::vector<AdamwCase> adamw_cases() {
  return {{1, 0, false, at::kBFloat16},    {1003, 0, false, at::kBFloat16}, {4096, 4, true, at::kHalf},
          {1023, 1, false, at::kHalf},     {2050, 2, true, at::kBFloat16},  {5, 3, false, at::kFloat},
          {1024, 8, false, at::kBFloat16}, {777, 0, true, at::kFloat}};
}

/// Parameter, moments and copy after three steps, whole tensors: what lies around the run is in them.
inline Tensors adamw_steps(const AdamwCase& c, at::Device device) {
  at::manual_seed(3);
  const int64_t whole = c.count + c.begin + 9;
  Tensors t = {at::randn({whole}).to(device), at::zeros({whole}, device), at::zeros({whole}, device),
               at::zeros({whole}, at::TensorOptions(device).dtype(c.copy))};
  const auto part = [&](const at::Tensor& all) { return all.narrow(0, c.begin, c.count); };
  for (int64_t step = 1; step <= 3; ++step) {
    const at::Tensor gradient = at::randn({whole}).to(device);
    adamw(part(t[0]), part(gradient), part(t[1]), part(t[2]),
          {1e-2, 0.9, 0.98, 1e-8, 0.1, step, 0.7, c.coupled}, part(t[3]));
  }
  return t;
}

/// An update by a gradient in the dtype of the copy has the bits of the update by the same values in float32.
inline void expect_narrow_gradients(const AdamwCase& c, at::Device device) {
  SCOPED_TRACE(::testing::Message() << c.count << " from " << c.begin << ' ' << c.copy);
  const auto run = [&](bool narrow) {
    at::manual_seed(3);
    const int64_t whole = c.count + c.begin + 9;
    const at::Tensor given = at::randn({whole}).to(c.copy).to(device);
    const at::Tensor gradient = narrow ? given : given.to(at::kFloat);
    Tensors t = {at::randn({whole}).to(device), at::zeros({whole}, device), at::zeros({whole}, device),
                 at::zeros({whole}, at::TensorOptions(device).dtype(c.copy))};
    const auto part = [&](const at::Tensor& all) { return all.narrow(0, c.begin, c.count); };
    const AdamwOptions options{1e-2, 0.9, 0.98, 1e-8, 0.1, 1, 0.7, c.coupled};
    adamw(part(t[0]), part(gradient), part(t[1]), part(t[2]), options, part(t[3]));
    const AdamwOnDevice numbers{
        at::tensor(at::ArrayRef<float>(adamw_coefficients(options))).view({1, kAdamwCoefficients}).to(device),
        at::full({}, 0.7F, device), at::ones({}, device)};
    adamw(part(t[0]), part(gradient), part(t[1]), part(t[2]),
          AdamwRuns({{0, (c.count + 1) / 2, 0}}, c.coupled, device), numbers, part(t[3]));
    return t;
  };
  const Tensors expected = run(false), found = run(true);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
}

/// Copies, or sums, of more runs than one launch takes, of many lengths, from memory that begins anywhere:
/// the bits of LibTorch's, and nothing changes around them.
inline void expect_the_copies(at::ScalarType from, at::ScalarType to, bool add, at::Device device) {
  SCOPED_TRACE(::testing::Message() << from << " to " << to << (add ? ", added" : ""));
  at::manual_seed(9);
  const at::Tensor all = at::randn({60000}).to(to).to(device);
  at::Tensor expected = all.clone();
  std::vector<CopyRun> copies;
  int64_t begin = 0;
  for (int64_t i = 0; i < 100; ++i) {
    const int64_t count = i == 3 ? 20000 : i == 50 ? 8192 : 1 + i * 37 % 300;
    const at::Tensor source = at::randn({count + i % 3}).to(from).to(device).narrow(0, i % 3, count);
    copies.push_back({all.narrow(0, begin, count), source});
    at::Tensor there = expected.narrow(0, begin, count);
    add ? there.add_(source) : there.copy_(source);
    begin += i % 4 == 0 ? count : (count + 64) / 64 * 64;  // with and without gaps
  }
  ASSERT_LT(begin, all.numel());
  ASSERT_TRUE(has_copy_runs(copies[0]));
  copy_runs(copies, add);
  EXPECT_TRUE(at::equal(all, expected));
}

/// Inputs of a GELU: most near zero, some far from it, and `begin` values before them (a pack of 16 bytes
/// begins at `begin` = 0).
inline at::Tensor gelu_case(int64_t count, int64_t begin, at::ScalarType dtype) {
  at::manual_seed(5);
  at::Tensor x = at::randn({begin + count}) * 3;
  const double most = dtype == at::kHalf ? 6e4 : 3e38;
  const std::vector<double> special = {0, -0.0, 1e-4, -1e-4, 5, -5, 9, -9, 40, -40, 1e4, -1e4, most, -most};
  for (size_t i = 0; i < special.size(); ++i) {
    const auto place = begin + static_cast<int64_t>(i) * 3;
    if (place < begin + count) x[place] = special[i];
  }
  return x.to(dtype).narrow(0, begin, count);
}

/// GELU and its gradients beside the formulas in float64. Allowed: a rounding to the dtype, and fp32's error
/// of erf and exp, 4e-7, times what it is multiplied with. (Far below zero Phi is smaller than that.)
inline void expect_the_gelu(int64_t count, int64_t begin, at::ScalarType dtype, at::Device device) {
  SCOPED_TRACE(::testing::Message() << count << " from " << begin << ' ' << dtype);
  const at::Tensor host = gelu_case(count, begin, dtype);
  const at::Tensor all = gelu_case(begin + count, 0, dtype).to(device);
  const at::Tensor x = begin == 0 ? host.to(device) : all.narrow(0, begin, count).copy_(host);
  at::manual_seed(6);
  const at::Tensor gradient = at::randn({count}).to(dtype);
  const at::Tensor exact = host.to(at::kDouble), g = gradient.to(at::kDouble);
  const at::Tensor phi = at::erfc(-exact * M_SQRT1_2) / 2;
  const at::Tensor density = at::exp(-exact * exact / 2) * (M_2_SQRTPI * M_SQRT1_2 / 2);
  const double step = dtype == at::kFloat ? 2e-7 : dtype == at::kHalf ? 5e-4 : 4e-3, tiny = 1e-7;
  const auto expect = [&](const char* what, const at::Tensor& found, const at::Tensor& expected,
                          const at::Tensor& factor) {
    ASSERT_EQ(found.scalar_type(), dtype);
    ASSERT_EQ(found.device().type(), device.type());
    const at::Tensor allowed = expected.abs() * step + factor.abs() * 4e-7 + tiny;
    const at::Tensor off = (found.to(at::kCPU, at::kDouble) - expected).abs() / allowed;
    EXPECT_LE(off.max().item<double>(), 1) << what << " at x = " << exact[off.argmax()].item<double>();
  };
  const at::Tensor slope = phi + exact * density, there = gradient.to(device);
  expect("gelu", exact_gelu_forward(x), exact * phi, exact);
  expect("gradient", exact_gelu_backward(there, x), g * slope, g);
  const at::Tensor of_x = there.clone(), y = exact_gelu_backward_and_output(of_x, x);
  expect("gradient in place", of_x, g * slope, g);
  EXPECT_TRUE(at::equal(y, exact_gelu_forward(x)));
  const at::Tensor input = x.clone().requires_grad_();
  exact_gelu(input).backward(there);
  EXPECT_TRUE(at::equal(input.grad(), of_x));
}

struct SumsCase {
  int64_t rows, width, begin;  // `begin`: values before the matrices (0: packs of 16 bytes)
};
/// One strip of columns and several, an incomplete one, one row, one row and many for a thread.
inline std::vector<SumsCase> sums_cases() {
  return {{1, 8, 0}, {3, 5, 0}, {130, 320, 0}, {130, 320, 1}, {17, 33, 0}, {197, 576, 0}, {1100, 8, 0}};
}

/// [rows, width] of random values, as a view of a longer tensor.
inline at::Tensor sums_matrix(const SumsCase& c, at::ScalarType dtype, at::Device device) {
  const at::Tensor all = at::randn({c.begin + c.rows * c.width}).to(dtype).to(device);
  return all.narrow(0, c.begin, c.rows * c.width).view({c.rows, c.width});
}

/// GELU's gradient with the sums of its columns: the gradient has the bits of the kernel without sums, and
/// the sums are the same bits each time.
inline void expect_the_gelu_sums(const SumsCase& c, at::ScalarType dtype, at::Device device) {
  SCOPED_TRACE(::testing::Message() << c.rows << " x " << c.width << " from " << c.begin << ' ' << dtype);
  at::manual_seed(7);
  const at::Tensor x = sums_matrix(c, dtype, device) * 2, gradient = sums_matrix(c, dtype, device);
  const SummedGradient found = exact_gelu_backward_and_sums(gradient, x);
  ASSERT_TRUE(found.sums.defined());
  EXPECT_EQ(found.sums.scalar_type(), dtype);
  EXPECT_TRUE(at::equal(found.rows, exact_gelu_backward(gradient, x)));
  const at::Tensor exact = at::gelu_backward(gradient.to(at::kCPU, at::kDouble), x.to(at::kCPU, at::kDouble));
  EXPECT_LT(error(found.rows, exact), rounding(dtype));
  EXPECT_LT(error(found.sums, exact.sum(0)), rounding(dtype));
  EXPECT_TRUE(at::equal(exact_gelu_backward_and_sums(gradient, x).sums, found.sums));
}

/// Three matrices side by side, bit for bit, with the sums of their columns, the same bits each time.
/// `c.width`: of each. One of them is not contiguous.
inline void expect_the_concat(const SumsCase& c, at::ScalarType dtype, at::Device device) {
  SCOPED_TRACE(::testing::Message() << c.rows << " x " << c.width << " from " << c.begin << ' ' << dtype);
  at::manual_seed(8);
  Tensors parts = {sums_matrix(c, dtype, device), sums_matrix(c, dtype, device)};
  parts.push_back(at::randn({c.width, c.rows}).to(dtype).to(device).t());
  ASSERT_TRUE(has_summed_concat(parts[0]));
  const SummedGradient found = summed_concat(parts);
  EXPECT_TRUE(at::equal(found.rows, at::cat(parts, 1)));
  EXPECT_EQ(found.sums.scalar_type(), dtype);
  EXPECT_LT(error(found.sums, found.rows.to(at::kCPU, at::kDouble).sum(0)), rounding(dtype));
  EXPECT_TRUE(at::equal(summed_concat(parts).sums, found.sums));
}

/// What is not finite is not hidden: -inf * 0 and inf * 0 of the formulas are NaN.
inline void expect_the_gelu_of_non_finite_values(at::Device device) {
  const at::Tensor x = at::tensor({-INFINITY, INFINITY, NAN, 1.0F}).to(device);
  const at::Tensor y = exact_gelu_forward(x).cpu(), of_x = exact_gelu_backward(at::ones_like(x), x).cpu();
  for (const int64_t i : {0, 2}) EXPECT_TRUE(std::isnan(y[i].item<float>())) << i;
  for (const int64_t i : {0, 1, 2}) EXPECT_TRUE(std::isnan(of_x[i].item<float>())) << i;
  EXPECT_EQ(y[1].item<float>(), INFINITY);
  EXPECT_NEAR(y[3].item<float>(), 0.8413447F, 1e-6);
  EXPECT_NEAR(of_x[3].item<float>(), 1.0833155F, 1e-6);
}

struct GeluCase {
  int64_t count, begin;
};
inline std::vector<GeluCase> gelu_cases() {
  return {{1, 0}, {7, 0}, {8, 0}, {9, 0}, {2048, 0}, {2053, 0}, {5000, 1}, {100, 4}};
}

struct AdamwRunsCase {
  int64_t count, begin;  // of a longer tensor
  bool coupled;
  at::ScalarType copy;
  std::vector<device::AdamwRun> runs;
};
/// Runs that begin and end within a pack, gaps, runs of one element, more runs than a warp has threads.
inline std::vector<AdamwRunsCase> adamw_runs_cases() {
  std::vector<device::AdamwRun> many;
  for (int64_t i = 0; i < 70; ++i) many.push_back({i * 29, i * 29 + 1 + i % 29, i % 3});
  return {{1003, 0, false, at::kBFloat16, {{0, 1003, 1}}},
          {4099, 4, true, at::kHalf, {{0, 1024, 2}, {1024, 1030, 1}, {1031, 1032, 0}, {2000, 4099, 2}}},
          {1023, 1, false, at::kHalf, {{3, 7, 0}, {7, 8, 1}, {9, 1000, 0}}},
          {2050, 8, false, at::kBFloat16, many},
          {5, 0, true, at::kBFloat16, {{1, 2, 0}}},
          {300, 0, false, at::kFloat, {{0, 150, 0}, {150, 299, 1}}}};
}
inline AdamwOptions adamw_row(const AdamwRunsCase& c, int64_t row, int64_t step) {
  return {1e-2 * static_cast<double>(row + 1), 0.9, 0.98, 1e-8, row == 1 ? 0.0 : 0.1, step, 0.7, c.coupled};
}

/// As adamw_steps(), by runs. In step 2 the flag says that nothing may be written. `one_by_one`: the function
/// of a single run, which a step 2 does not reach, in place of the table.
inline Tensors adamw_runs_steps(const AdamwRunsCase& c, at::Device device, bool one_by_one) {
  at::manual_seed(3);
  const int64_t whole = c.count + c.begin + 9;
  Tensors t = {at::randn({whole}).to(device), at::zeros({whole}, device), at::zeros({whole}, device),
               at::zeros({whole}, at::TensorOptions(device).dtype(c.copy))};
  const AdamwRuns runs(c.runs, c.coupled, device);
  for (int64_t step = 1; step <= 3; ++step) {
    const at::Tensor gradient = at::randn({whole}).to(device);
    const auto part = [&](const at::Tensor& all, int64_t begin, int64_t end) {
      return all.narrow(0, c.begin + begin, end - begin);
    };
    if (one_by_one) {
      for (const device::AdamwRun& run : c.runs) {
        const auto of = [&](const at::Tensor& all) { return part(all, run.begin, run.end); };
        if (step == 2) continue;
        adamw(of(t[0]), of(gradient), of(t[1]), of(t[2]), adamw_row(c, run.row, step), of(t[3]));
      }
      continue;
    }
    std::vector<float> rows;
    for (int64_t row = 0; row < 3; ++row) {
      for (const float number : adamw_coefficients(adamw_row(c, row, step))) rows.push_back(number);
    }
    const AdamwOnDevice numbers{at::tensor(rows).view({3, kAdamwCoefficients}).to(device),
                                at::full({}, 0.7F, device), at::full({}, step == 2 ? 0.0F : 1.0F, device)};
    const auto of = [&](const at::Tensor& all) { return part(all, 0, c.count); };
    adamw(of(t[0]), of(gradient), of(t[1]), of(t[2]), runs, numbers, of(t[3]));
  }
  return t;
}

/// Numbers of every size that the dtype has, rows of zeros, and of ties between two numbers of e4m3.
inline at::Tensor fp8_case(int64_t rows, int64_t columns, at::ScalarType dtype) {
  at::manual_seed(4);
  at::Tensor x = at::randn({rows, columns});
  for (int64_t i = 0; i < rows; ++i) {
    const auto exponent = static_cast<int>(dtype == at::kHalf ? i % 24 - 14 : i * 7 % 250 - 125);
    x[i].mul_(std::ldexp(1.0F, exponent));
    x[i].narrow(0, 0, columns / 3).mul_(1e-3);
  }
  if (rows > 4) {
    x[2].zero_();
    x[3].copy_(at::arange(columns) / 16.0 + 1);
    x[4].fill_(448.5);
  }
  const double most = dtype == at::kHalf ? 6e4 : 3e38;
  return x.clamp_(-most, most).to(dtype);
}

}  // namespace tessera::ops
