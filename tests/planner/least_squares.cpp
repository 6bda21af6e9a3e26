// SPDX-License-Identifier: Apache-2.0
// All parameters are scaled to [0, 1], so that one step width and one damping fit all of them.
#include "least_squares.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::planner {
namespace {

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;  // by row

double dot(const Vector& one, const Vector& two) {
  double total = 0;
  for (size_t i = 0; i < one.size(); ++i) total += one[i] * two[i];
  return total;
}

/// Solves a * x = b by Gaussian elimination. Requires: a positive definite.
Vector solved(Matrix a, Vector b) {
  for (size_t column = 0; column < b.size(); ++column) {
    for (size_t row = column + 1; row < b.size(); ++row) {
      const double factor = a[row][column] / a[column][column];
      for (size_t k = column; k < b.size(); ++k) a[row][k] -= factor * a[column][k];
      b[row] -= factor * b[column];
    }
  }
  for (size_t row = b.size(); row-- > 0;) {
    for (size_t k = row + 1; k < b.size(); ++k) b[row] -= a[row][k] * b[k];
    b[row] /= a[row][row];
  }
  return b;
}

/// The residuals as a function of scaled parameters.
class Scaled {
 public:
  Scaled(const Residuals& residuals, std::span<const Parameter> parameters)
      : residuals_(residuals), parameters_(parameters) {}

  Vector values(const Vector& scaled) const {
    Vector values;
    for (size_t i = 0; i < scaled.size(); ++i)
      values.push_back(std::lerp(parameters_[i].lower, parameters_[i].upper, scaled[i]));
    return values;
  }
  Vector residuals(const Vector& scaled) const { return residuals_(values(scaled)); }

  /// By parameter: the derivative of each residual.
  Matrix derivatives(const Vector& scaled) const {
    constexpr double kStep = 1e-6;
    Matrix all;
    for (size_t i = 0; i < scaled.size(); ++i) {
      Vector low = scaled, high = scaled;
      low[i] = std::max(0., scaled[i] - kStep);
      high[i] = std::min(1., scaled[i] + kStep);
      const Vector below = residuals(low);
      Vector slope = residuals(high);
      for (size_t k = 0; k < slope.size(); ++k) slope[k] = (slope[k] - below[k]) / (high[i] - low[i]);
      all.push_back(std::move(slope));
    }
    return all;
  }

 private:
  const Residuals& residuals_;
  std::span<const Parameter> parameters_;
};

/// One damped step from `scaled`, cut off at the bounds.
Vector next(const Vector& scaled, const Vector& residuals, const Matrix& derivatives, double damping) {
  std::vector<size_t> free;
  for (size_t i = 0; i < scaled.size(); ++i) {
    const double slope = dot(derivatives[i], residuals);
    const bool held = (scaled[i] <= 0 && slope > 0) || (scaled[i] >= 1 && slope < 0);
    if (!held && dot(derivatives[i], derivatives[i]) > 0) free.push_back(i);
  }
  Matrix normal(free.size(), Vector(free.size()));
  Vector right;
  for (size_t i = 0; i < free.size(); ++i) {
    for (size_t k = 0; k < free.size(); ++k) normal[i][k] = dot(derivatives[free[i]], derivatives[free[k]]);
    normal[i][i] *= 1 + damping;
    right.push_back(-dot(derivatives[free[i]], residuals));
  }
  const Vector step = solved(std::move(normal), std::move(right));
  Vector moved = scaled;
  for (size_t i = 0; i < free.size(); ++i) moved[free[i]] = std::clamp(moved[free[i]] + step[i], 0., 1.);
  return moved;
}

}  // namespace

double Fit::sum_of_squares() const { return dot(residuals, residuals); }

Fit least_squares(const Residuals& residuals, std::span<const Parameter> parameters) {
  constexpr int kSteps = 500;
  constexpr double kLeastDamping = 1e-9, kMostDamping = 1e9, kConverged = 1e-14;
  Vector scaled;
  for (const Parameter& one : parameters) {
    TESSERA_CHECK(one.lower < one.upper && one.lower <= one.start && one.start <= one.upper, one.lower, " ",
                  one.start, " ", one.upper);
    scaled.push_back((one.start - one.lower) / (one.upper - one.lower));
  }
  const Scaled model(residuals, parameters);
  Vector now = model.residuals(scaled);
  double damping = 1e-3;
  for (int step = 0; step < kSteps && damping < kMostDamping; ++step) {
    const Vector moved = next(scaled, now, model.derivatives(scaled), damping);
    Vector then = model.residuals(moved);
    const double before = dot(now, now), after = dot(then, then);
    if (!(after < before)) {
      damping *= 4;
      continue;
    }
    scaled = moved;
    now = std::move(then);
    damping = std::max(damping / 4, kLeastDamping);
    if (before - after <= kConverged * before) break;
  }
  return {model.values(scaled), now};
}

}  // namespace tessera::planner
