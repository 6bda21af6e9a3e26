// SPDX-License-Identifier: Apache-2.0
// Fits a few parameters of a model to measurements. Pure; safe from any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace tessera::planner {

/// A parameter to fit: where the search begins, and the bounds that it keeps.
struct Parameter {
  double start = 0, lower = 0, upper = 0;
};

struct Fit {
  std::vector<double> values;     // of the parameters
  std::vector<double> residuals;  // of the model at `values`
  double sum_of_squares() const;
};

/// Returns the residual of each measurement, given the values of the parameters.
using Residuals = std::function<std::vector<double>(std::span<const double>)>;

/// Values that locally minimise the sum of squared residuals within the bounds: Levenberg-Marquardt with
/// derivatives from central differences, where parameters at a bound that would leave it are held.
/// Parameters that change no residual keep their start. Residuals must be finite within the bounds; kinks
/// are allowed, but may end the search early. Deterministic. Errors: InternalError where not lower < upper
/// or where start is outside.
Fit least_squares(const Residuals& residuals, std::span<const Parameter> parameters);

}  // namespace tessera::planner
