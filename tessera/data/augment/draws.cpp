// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/augment/draws.h"

#include <cmath>
#include <numbers>

#include "tessera/base/random.h"

namespace tessera::data {

double Draws::uniform() { return random_uniform53(key_, next_++); }

int64_t Draws::below(int64_t bound) {
  return static_cast<int64_t>(random_below(key_, next_++, static_cast<uint64_t>(bound)));
}

double Draws::normal(double mean, double std) {
  const double radius = std::sqrt(-2.0 * std::log1p(-uniform()));
  return mean + std * radius * std::cos(2.0 * std::numbers::pi * uniform());
}

double Draws::log_gamma_variate(double shape) {
  if (shape < 1) return log_gamma_variate(shape + 1) + std::log1p(-uniform()) / shape;
  const double d = shape - 1.0 / 3.0, c = 1.0 / std::sqrt(9.0 * d);
  while (true) {
    const double x = normal(0, 1);
    const double root = 1.0 + c * x;
    const double u = 1.0 - uniform();
    if (root <= 0) continue;
    const double v = root * root * root;
    if (std::log(u) < 0.5 * x * x + d - d * v + d * std::log(v)) return std::log(d * v);
  }
}

double Draws::beta(double alpha) {
  const double first = log_gamma_variate(alpha);
  return 1.0 / (1.0 + std::exp(log_gamma_variate(alpha) - first));
}

}  // namespace tessera::data
