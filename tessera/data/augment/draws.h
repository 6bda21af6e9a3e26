// SPDX-License-Identifier: Apache-2.0
// Random draws in sequence from one counter-based stream: a function of the stream's key alone, for draws of
// which nobody knows beforehand how many there will be.
#pragma once

#include <cstdint>

namespace tessera::data {

class Draws {
 public:
  explicit Draws(uint64_t key) : key_(key) {}

  /// In [0, 1).
  double uniform();
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  /// In [0, bound).
  int64_t below(int64_t bound);
  bool coin() { return below(2) == 1; }
  /// True with this probability.
  bool chance(double probability) { return uniform() < probability; }
  /// Box and Muller's cosine half.
  double normal(double mean, double std);
  /// Beta(alpha, alpha) as a ratio of two Gamma variates (Marsaglia and Tsang, "A simple method for
  /// generating gamma variables", 2000), in logarithms so that a tiny alpha stays exact. Requires: alpha > 0.
  double beta(double alpha);

 private:
  double log_gamma_variate(double shape);

  uint64_t key_, next_ = 0;
};

}  // namespace tessera::data
