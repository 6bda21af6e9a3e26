// SPDX-License-Identifier: Apache-2.0
// Fits whose minimum is known.
#include "least_squares.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "tessera/base/error.h"

namespace tessera::planner {
namespace {

/// A straight line through points that lie beside it: the minimum has a closed form.
TEST(LeastSquares, FitsALine) {
  const std::array<double, 4> x = {0, 1, 2, 3}, y = {1, 3, 4, 8};
  const auto residuals = [&](std::span<const double> line) {
    std::vector<double> all;
    for (size_t i = 0; i < x.size(); ++i) all.push_back(line[0] + line[1] * x[i] - y[i]);
    return all;
  };
  const std::vector<Parameter> parameters = {{0, -10, 10}, {0, -10, 10}};
  const Fit fit = least_squares(residuals, parameters);
  EXPECT_NEAR(fit.values[0], 0.7, 1e-6);  // mean(y) - 2.2 * mean(x)
  EXPECT_NEAR(fit.values[1], 2.2, 1e-6);  // covariance 2.75 / variance 1.25
  EXPECT_NEAR(fit.sum_of_squares(), 1.8, 1e-9);
}

/// Rosenbrock's valley: a curved path to (1, 1).
TEST(LeastSquares, FollowsACurvedValley) {
  const auto residuals = [](std::span<const double> v) {
    return std::vector<double>{10 * (v[1] - v[0] * v[0]), 1 - v[0]};
  };
  const Fit fit = least_squares(residuals, std::vector<Parameter>{{-1.2, -5, 5}, {1, -5, 5}});
  EXPECT_NEAR(fit.values[0], 1, 1e-5);
  EXPECT_NEAR(fit.values[1], 1, 1e-5);
}

/// The minimum is (4, -1). With a <= 2 it is (2, 1), where a step towards (4, -1) would change b the wrong
/// way.
TEST(LeastSquares, HoldsParametersAtTheirBounds) {
  for (const double sign : {1., -1.}) {  // the upper bound, the lower one
    const auto residuals = [&](std::span<const double> v) {
      return std::vector<double>{sign * v[0] + v[1] - 3, 0.001 * (sign * v[0] - 4)};
    };
    const Parameter bounded = sign > 0 ? Parameter{1, 0, 2} : Parameter{-1, -2, 0};
    const Fit fit = least_squares(residuals, std::vector<Parameter>{bounded, {0, -5, 5}});
    EXPECT_DOUBLE_EQ(fit.values[0], sign * 2);
    EXPECT_NEAR(fit.values[1], 1, 1e-6);
  }
}

TEST(LeastSquares, ParametersWithoutEffectKeepTheirStart) {
  const auto residuals = [](std::span<const double> v) { return std::vector<double>{v[0] - 4}; };
  const Fit fit = least_squares(residuals, std::vector<Parameter>{{1, 0, 10}, {3, 0, 10}});
  EXPECT_NEAR(fit.values[0], 4, 1e-6);
  EXPECT_DOUBLE_EQ(fit.values[1], 3);
}

TEST(LeastSquares, RejectsAStartOutsideTheBounds) {
  const auto residuals = [](std::span<const double> v) { return std::vector<double>{v[0]}; };
  EXPECT_THROW(least_squares(residuals, std::vector<Parameter>{{3, 0, 2}}), InternalError);
  EXPECT_THROW(least_squares(residuals, std::vector<Parameter>{{1, 1, 1}}), InternalError);
}

}  // namespace
}  // namespace tessera::planner
