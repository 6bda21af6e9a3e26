// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/batch_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>

#include <cmath>
#include <limits>

#include "tessera/ops/cpu/cpu.h"
#include "tests/error_text.h"
#include "tests/ops/beside_formula.h"
#include "tests/ops/has_kernels.h"

namespace tessera::ops {
namespace {

constexpr int64_t kOverRows[] = {0, 2, 3};

/// What an op is given, and afterwards the gradients in it.
struct Inputs {
  at::Tensor x, weight, bias, residual;  // residual: or undefined
  at::Tensor running_mean, running_var;

  BatchNorm norm() const { return {weight, bias, running_mean, running_var, 1e-5, 0.3}; }
  /// The same numbers in float64.
  Inputs exact() const {
    const auto wide = [](const at::Tensor& t) {
      return t.defined() ? t.detach().to(at::kDouble).requires_grad_(t.requires_grad()) : t;
    };
    return {wide(x), wide(weight), wide(bias), wide(residual), wide(running_mean), wide(running_var)};
  }
};

Inputs batch_norm_inputs(const std::vector<int64_t>& shape, at::ScalarType dtype, bool residual) {
  at::manual_seed(11);
  const int64_t channels = shape[1];
  const auto leaf = [&](const at::Tensor& t) { return t.to(dtype).contiguous(kImages).requires_grad_(); };
  Inputs in;
  // Every channel at another place.
  in.x = leaf(at::randn(shape) * 2 + 3 * at::randn({1, channels, 1, 1}));
  in.weight = (1 + at::randn({channels}) / 4).to(dtype).requires_grad_();
  in.bias = (at::randn({channels}) / 4).to(dtype).requires_grad_();
  if (residual) in.residual = leaf(at::randn(shape));
  in.running_mean = at::randn({channels});
  in.running_var = at::rand({channels}) + 0.5;
  return in;
}

/// The plain formula. The ReLU lets through what `through` says: where a sum is 0 but for rounding, either is
/// right.
at::Tensor batch_norm_formula(Inputs& in, bool training, bool relu, const at::Tensor& through) {
  const auto spread = [](const at::Tensor& t) { return t.view({1, -1, 1, 1}); };
  at::Tensor mean = spread(in.running_mean), variance = spread(in.running_var);
  if (training) {
    mean = in.x.mean(kOverRows, true);
    variance = (in.x - mean).square().mean(kOverRows, true);
    const auto rows = static_cast<double>(in.x.numel() / in.x.size(1));
    in.running_mean = 0.7 * in.running_mean + 0.3 * mean.detach().view(-1);
    in.running_var = 0.7 * in.running_var + 0.3 * variance.detach().view(-1) * (rows / (rows - 1));
  }
  at::Tensor y = (in.x - mean) / (variance + 1e-5).sqrt() * spread(in.weight) + spread(in.bias);
  if (in.residual.defined()) y = y + in.residual;
  return relu ? y * through : y;
}

void expect_near(const at::Tensor& found, const at::Tensor& exact, double tolerance, const char* what) {
  ASSERT_EQ(found.sizes(), exact.sizes()) << what;
  const double error = (found.to(at::kDouble) - exact).abs().max().item<double>();
  EXPECT_LE(error, tolerance * (1e-3 + exact.abs().max().item<double>())) << what;
}

void expect_formula(Inputs in, bool training, bool relu, double tolerance) {
  Inputs exact = in.exact();
  const at::Tensor y = batch_norm(in.x, in.norm(), training, {relu, in.residual});
  EXPECT_EQ(y.scalar_type(), in.x.scalar_type());
  EXPECT_TRUE(y.is_contiguous(kImages));
  const at::Tensor through = (y.detach() > 0).to(at::kDouble);
  const at::Tensor expected = batch_norm_formula(exact, training, relu, through);
  if (relu) expect_near(at::relu(expected.detach()), expected.detach(), tolerance, "what ReLU lets through");
  expect_near(y.detach(), expected.detach(), tolerance, "value");
  const double of_sums = has_kernels(in.x.scalar_type()) ? 1e-6 : 1e-5;
  expect_near(in.running_mean, exact.running_mean, of_sums, "running mean");
  expect_near(in.running_var, exact.running_var, 10 * of_sums, "running variance");
  const at::Tensor direction = at::randn(y.sizes()).to(y.scalar_type()).contiguous(kImages);
  y.backward(direction);
  expected.backward(direction.to(at::kDouble));
  expect_near(in.x.grad(), exact.x.grad(), tolerance, "gradient of x");
  expect_near(in.weight.grad(), exact.weight.grad(), tolerance, "gradient of the weight");
  expect_near(in.bias.grad(), exact.bias.grad(), tolerance, "gradient of the bias");
  if (in.residual.defined()) expect_near(in.residual.grad(), exact.residual.grad(), tolerance, "residual's");
}

// (LibTorch's kernels add up a channel in float32.)
double batch_norm_tolerance(at::ScalarType dtype) {
  return dtype != at::kFloat ? 1e-2 : has_kernels(dtype) ? 1e-5 : 1e-4;
}

class BatchNormOp : public ::testing::TestWithParam<std::tuple<std::vector<int64_t>, at::ScalarType>> {};

TEST_P(BatchNormOp, ValueStatisticsAndGradientsAreThoseOfTheFormula) {
  const auto& [shape, dtype] = GetParam();
  for (const bool training : {true, false}) {
    for (const bool relu : {false, true}) {
      for (const bool residual : {false, true}) {
        SCOPED_TRACE(::testing::Message()
                     << "training " << training << " relu " << relu << " residual " << residual);
        expect_formula(batch_norm_inputs(shape, dtype, residual), training, relu,
                       batch_norm_tolerance(dtype));
      }
    }
  }
}

// Channels that are no multiple of a vector, fewer rows than are taken at a time, many chunks of rows.
INSTANTIATE_TEST_SUITE_P(
    Grid, BatchNormOp,
    ::testing::Combine(::testing::Values(std::vector<int64_t>{2, 1, 1, 1}, std::vector<int64_t>{1, 5, 3, 1},
                                         std::vector<int64_t>{3, 16, 7, 5}, std::vector<int64_t>{2, 33, 9, 9},
                                         std::vector<int64_t>{4, 200, 14, 13},
                                         std::vector<int64_t>{1, 7, 201, 199}),
                       ::testing::Values(at::kFloat, at::kBFloat16)));

// More than the caches hold, which results then go past.
TEST(BatchNorm, OfLargeImagesIsThatOfTheFormula) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    expect_formula(batch_norm_inputs({6, 48, 131, 123}, dtype, true), true, true,
                   batch_norm_tolerance(dtype));
  }
}

// Deviations of 1e-4 of the mean, in float32 some hundred of its steps: sums of plain squares would be noise.
TEST(BatchNorm, AMeanFarFromZeroCostsNoDigits) {
  if (!has_kernels(at::kFloat)) GTEST_SKIP() << "LibTorch's kernels lose some";
  for (const bool training : {true, false}) {
    Inputs in = batch_norm_inputs({3, 40, 33, 31}, at::kFloat, true);
    in.x = (in.x.detach() + 2e4).contiguous(kImages).requires_grad_();
    in.running_mean += 2e4;
    expect_formula(in, training, true, 1e-5);
  }
}

// The first rows are what the others' deviations are first taken from.
TEST(BatchNorm, FirstRowsFarFromTheOthersCostNoDigits) {
  if (!has_kernels(at::kFloat)) GTEST_SKIP() << "LibTorch's kernels lose some";
  Inputs in = batch_norm_inputs({1, 19, 40, 40}, at::kFloat, false);
  at::Tensor x = in.x.detach().clone(kImages);
  x.slice(2, 0, 1) += 1e4;
  in.x = x.requires_grad_();
  expect_formula(in, true, false, 2e-5);
}

std::vector<at::Tensor> numbers(at::ScalarType dtype, int threads) {
  at::set_num_threads(threads);
  Inputs in = batch_norm_inputs({3, 40, 33, 31}, dtype, true);
  const at::Tensor y = batch_norm(in.x, in.norm(), true, {true, in.residual});
  y.backward(y.detach().sin());
  return {y.detach(),         in.x.grad(),     in.weight.grad(), in.bias.grad(),
          in.residual.grad(), in.running_mean, in.running_var};
}

class BatchNormBits : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void TearDown() override { at::set_num_threads(threads_); }

 private:
  int threads_ = at::get_num_threads();
};

TEST_P(BatchNormBits, DoNotDependOnThreads) {
  if (!has_kernels(GetParam())) GTEST_SKIP() << "no kernel for this CPU";
  const auto expected = numbers(GetParam(), 1);
  for (const int threads : {2, 3, 4}) {
    const auto found = numbers(GetParam(), threads);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::equal(found[i], expected[i])) << i << ", " << threads;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, BatchNormBits, ::testing::Values(at::kFloat, at::kBFloat16));

TEST(BatchNorm, InOtherMemoryAndWithoutKernelsTheNumbersAreTheSame) {
  const Inputs in = batch_norm_inputs({3, 40, 9, 11}, at::kFloat, true);
  const at::NoGradGuard no_grad;
  for (const bool training : {true, false}) {
    const auto run = [&](at::MemoryFormat x, at::MemoryFormat residual) {
      BatchNorm norm = in.norm();
      norm.running_mean = norm.running_mean.clone();
      norm.running_var = norm.running_var.clone();
      const at::Tensor y =
          batch_norm(in.x.contiguous(x), norm, training, {true, in.residual.contiguous(residual)});
      return at::cat({y.flatten(), norm.running_mean, norm.running_var}).to(at::kDouble);
    };
    const at::Tensor expected = run(kImages, kImages);
    expect_near(run(kImages, at::MemoryFormat::Contiguous), expected, 1e-6, "residual");
    expect_near(run(at::MemoryFormat::Contiguous, kImages), expected, 1e-6, "x");
    const WithoutKernels foreign;
    expect_near(run(kImages, kImages), expected, 1e-6, "LibTorch");
  }
}

// As a convolution's weight that is frozen gives; and a norm that is not trained.
TEST(BatchNorm, GivesTheGradientsThatAreAskedFor) {
  const Inputs all = batch_norm_inputs({2, 24, 5, 5}, at::kFloat, true);
  const auto run = [&](bool of_x, bool of_weight, bool of_residual) {
    Inputs in{all.x.detach().clone(),        all.weight.detach().clone(), all.bias.detach().clone(),
              all.residual.detach().clone(), all.running_mean.clone(),    all.running_var.clone()};
    in.x.requires_grad_(of_x);
    in.weight.requires_grad_(of_weight);
    in.residual.requires_grad_(of_residual);
    const at::Tensor y = batch_norm(in.x, in.norm(), true, {true, in.residual});
    y.backward(y.detach().cos());
    return in;
  };
  const Inputs expected = run(true, true, true);
  const Inputs x = run(true, false, false), weight = run(false, true, false),
               residual = run(false, false, true);
  EXPECT_TRUE(at::equal(x.x.grad(), expected.x.grad()));
  EXPECT_TRUE(at::equal(weight.weight.grad(), expected.weight.grad()));
  EXPECT_TRUE(at::equal(residual.residual.grad(), expected.residual.grad()));
  EXPECT_FALSE(x.weight.grad().defined() || x.residual.grad().defined() || residual.x.grad().defined());
}

// (Autograd would drop it.)
TEST(BatchNorm, MakesNoGradientOfAnXThatNeedsNone) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    if (!has_kernels(dtype)) continue;
    const Inputs in = batch_norm_inputs({2, 24, 5, 5}, dtype, true);
    const at::Tensor y = batch_norm(in.x.detach(), in.norm(), true, {true, in.residual});
    const auto gradients = (*y.grad_fn())({at::ones_like(y)});
    EXPECT_FALSE(gradients[0].defined());
    for (const size_t i : {1, 2, 3}) EXPECT_TRUE(gradients[i].defined()) << i;
  }
}

// What rounding makes a deviation of the smaller numbers has a square below the least float32.
TEST(BatchNorm, AConstantChannelHasNoNegativeVariance) {
  if (!has_kernels(at::kFloat)) GTEST_SKIP() << "LibTorch's kernels lose some";
  for (const double size : {1e4, 1e-16}) {
    const Inputs in = batch_norm_inputs({3, 200, 33, 31}, at::kFloat, false);
    const at::Tensor x = (size * at::randn({1, 200, 1, 1})).expand_as(in.x).contiguous(kImages);
    BatchNorm norm = in.norm();
    norm.momentum = 1;
    norm.epsilon = 1e-60;
    EXPECT_TRUE(at::isfinite(batch_norm(x, norm, true)).all().item<bool>()) << size;
    EXPECT_GE(in.running_var.min().item<double>(), 0.0) << size;
  }
}

TEST(BatchNorm, ANanStaysInItsChannel) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    at::Tensor x = batch_norm_inputs({2, 19, 3, 3}, dtype, false).x.detach();
    x[1][18][2][2] = std::numeric_limits<float>::quiet_NaN();
    const Inputs in = batch_norm_inputs({2, 19, 3, 3}, dtype, false);
    const at::Tensor y = batch_norm(x.contiguous(kImages), in.norm(), true, {true, {}});
    EXPECT_TRUE(at::isnan(y.select(1, 18)).all().item<bool>());
    EXPECT_TRUE(at::isfinite(y.narrow(1, 0, 18)).all().item<bool>());
  }
}

// Its variance without bias would be 0 / 0, and stay in the running one.
TEST(BatchNorm, OfOneValueAChannelIsRefusedInTraining) {
  Inputs in = batch_norm_inputs({1, 21, 1, 1}, at::kFloat, false);
  for (const auto& call : {+[](const Inputs& of) { batch_norm(of.x, of.norm(), true); },
                           +[](const Inputs& of) { normed_images(of.x, of.norm(), true, true); }}) {
    EXPECT_NE(error_text([&] { call(in); })
                  .find("[ops.batch_norm] batch norm got a single image of 1 x 1 in training: expected more "
                        "than one value of each channel"),
              std::string::npos);
  }
  EXPECT_TRUE(at::isfinite(in.running_var).all().item<bool>());
  EXPECT_TRUE(at::isfinite(batch_norm(in.x, in.norm(), false)).all().item<bool>());
}

TEST(BatchNorm, OfNothingIsNothing) {
  Inputs in = batch_norm_inputs({2, 8, 3, 3}, at::kFloat, true);
  const at::Tensor before = in.running_mean.clone();
  const at::Tensor y = batch_norm(in.x.narrow(0, 0, 0), in.norm(), true, {true, in.residual.narrow(0, 0, 0)});
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{0, 8, 3, 3}));
  EXPECT_TRUE(at::equal(in.running_mean, before));
  y.sum().backward();
  EXPECT_EQ(in.x.grad().abs().sum().item<double>(), 0.0);
}

}  // namespace
}  // namespace tessera::ops
