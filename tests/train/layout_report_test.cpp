// SPDX-License-Identifier: Apache-2.0
// How differences between the recordings of two layouts are measured, on recordings made by hand.
#include "tessera/train/layout_report.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "small_run.h"

namespace tessera::train {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

RecordedTensor recorded(TensorKind kind, const std::string& name, const at::Tensor& values) {
  return {1, kind, name, values, ""};
}

LayoutReport judged(const std::vector<RecordedTensor>& a, const std::vector<RecordedTensor>& b) {
  return judge(make_recipe().model, a, b, 1e-5, 1);
}

TEST(JudgeLayouts, NaNsEqualNaNsAlone) {
  const double nan = std::nan("");
  const auto output = [](std::vector<double> values) {
    return std::vector{recorded(TensorKind::kOutput, "stem", at::tensor(values, at::kDouble))};
  };
  EXPECT_EQ(judged(output({1, nan, kNoLimit}), output({1, nan, kNoLimit})).differing(), 0);
  for (const double other : {1.0, kNoLimit, -kNoLimit}) {
    const LayoutReport report = judged(output({1, nan}), output({1, other}));
    ASSERT_EQ(report.differing(), 1);
    EXPECT_EQ(report.tensors[0].index, std::vector<int64_t>{1});
    EXPECT_EQ(report.tensors[0].largest, kNoLimit);
  }
  EXPECT_EQ(judged(output({kNoLimit}), output({-kNoLimit})).differing(), 1);
}

TEST(JudgeLayouts, DifferencesAreSharesOfTheLargestValue) {
  const auto output = [](std::vector<double> values) {
    return std::vector{recorded(TensorKind::kOutput, "stem", at::tensor(values, at::kDouble))};
  };
  const LayoutReport report = judged(output({0.5, -4, 1}), output({0.5, -4, 1.5}));
  EXPECT_EQ(report.tensors[0].largest, 0.125);
  EXPECT_EQ(report.tensors[0].index, std::vector<int64_t>{2});
  EXPECT_EQ(judged(output({0.5, -4}), output({0.5 + 2e-5, -4})).differing(), 0);
}

/// blocks.0 has a gradient of norm 4 in one parameter: 1e-6 of another one is a share of 2.5e-7.
TEST(JudgeLayouts, GradientsAreMeasuredByTheirUnits) {
  const auto gradients = [](double small) {
    return std::vector{
        recorded(TensorKind::kGradient, "blocks.0.norm1.weight", at::tensor({4.0, 0.0}, at::kDouble)),
        recorded(TensorKind::kGradient, "blocks.0.norm1.bias", at::tensor({small}, at::kDouble))};
  };
  const LayoutReport report = judged(gradients(0), gradients(1e-6));
  EXPECT_EQ(report.differing(), 0);
  EXPECT_NEAR(report.tensors[1].largest, 2.5e-7, 1e-12);
}

/// Adam makes a full step of a gradient that is a rounding error, in either direction.
TEST(JudgeLayouts, UpdatesFromRoundingErrorsAreExplained) {
  const auto step = [](double gradient, double weight) {
    return std::vector{recorded(TensorKind::kInitialWeight, "norm.bias", at::tensor({1.0, 0.0}, at::kDouble)),
                       recorded(TensorKind::kGradient, "norm.bias", at::tensor({1.0, gradient}, at::kDouble)),
                       recorded(TensorKind::kWeight, "norm.bias", at::tensor({0.99, weight}, at::kDouble))};
  };
  EXPECT_EQ(judged(step(1e-9, -0.01), step(-1e-9, 0.01)).differing(), 0);
  const LayoutReport report = judged(step(1e-9, -0.01), step(1e-9, 0.01));
  EXPECT_EQ(report.differing(), 1);
  ASSERT_NE(report.first_difference(), nullptr);
  EXPECT_EQ(report.first_difference()->title, "norm.bias after the step");
  EXPECT_EQ(report.first_difference()->index, std::vector<int64_t>{1});
}

/// Two gradients of rounding errors, of which those of the first step differ; the second update follows both.
TEST(JudgeLayouts, RoundingErrorsOfEarlierStepsExplainUpdatesThroughMoments) {
  const auto steps = [](double gradient, double weight) {
    const auto of = [](int64_t step, TensorKind kind, double value) {
      return RecordedTensor{step, kind, "norm.bias", at::tensor({1.0, value}, at::kDouble), ""};
    };
    return std::vector{of(1, TensorKind::kInitialWeight, 0), of(1, TensorKind::kGradient, gradient),
                       of(1, TensorKind::kWeight, 0), of(2, TensorKind::kGradient, 1e-9),
                       of(2, TensorKind::kWeight, weight)};
  };
  EXPECT_EQ(judged(steps(2e-9, -0.01), steps(-2e-9, 0.01)).differing(), 0);
  EXPECT_EQ(judged(steps(2e-9, -0.01), steps(2e-9, 0.01)).differing(), 1);
}

/// LAMB scales every update by the norm of the tensor's, here of rounding errors that have one element alike.
TEST(JudgeLayouts, RoundingErrorsOfATensorExplainUpdatesOfItsElements) {
  const auto step = [](double other, double weight) {
    return std::vector{recorded(TensorKind::kInitialWeight, "norm.bias", at::tensor({0.0, 0.0}, at::kDouble)),
                       recorded(TensorKind::kGradient, "norm.weight", at::ones({2}, at::kDouble)),
                       recorded(TensorKind::kGradient, "norm.bias", at::tensor({1e-9, other}, at::kDouble)),
                       recorded(TensorKind::kWeight, "norm.bias", at::tensor({weight, 0.0}, at::kDouble))};
  };
  EXPECT_EQ(judged(step(1e-9, 0.01), step(-1e-9, 0.02)).differing(), 0);
  EXPECT_EQ(judged(step(1e-9, 0.01), step(1e-9, 0.02)).differing(), 1);
}

}  // namespace
}  // namespace tessera::train
