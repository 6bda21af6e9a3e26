// SPDX-License-Identifier: Apache-2.0
// Attention's softmax in float64, for tests of the kernels.
#pragma once

#include "tests/ops/guarded.h"

namespace tessera::ops {

/// The softmax p [queries, tokens] of scores, and what p weighs. Queries, keys and values are given by
/// number: q(i, c), k(j, c), v(j, c).
struct Softmax {
  int64_t queries, tokens;
  Exact p;

  template <typename Q, typename K>
  Softmax(int64_t of_queries, int64_t of_tokens, int64_t width, double scale, const Q& q, const K& k)
      : queries(of_queries), tokens(of_tokens), p(zeros(of_queries * of_tokens)) {
    for (int64_t i = 0; i < queries; ++i) {
      double sum = 0, most = -std::numeric_limits<double>::infinity();
      for (int64_t j = 0; j < tokens; ++j) {
        double& score = at(p, i * tokens + j);
        for (int64_t c = 0; c < width; ++c) score += scale * q(i, c) * k(j, c);
        most = std::max(most, score);
      }
      for (int64_t j = 0; j < tokens; ++j) {
        double& score = at(p, i * tokens + j);
        sum += score = std::exp(score - most);
      }
      for (int64_t j = 0; j < tokens; ++j) at(p, i * tokens + j) /= sum;
    }
  }
  template <typename V>
  double mix(int64_t i, int64_t c, const V& v) {
    double sum = 0;
    for (int64_t j = 0; j < tokens; ++j) sum += at(p, i * tokens + j) * v(j, c);
    return sum;
  }
  /// The gradient of the scores from that of p, dp(i, j).
  template <typename Of>
  Exact backward(const Of& dp) {
    Exact ds = zeros(queries * tokens);
    for (int64_t i = 0; i < queries; ++i) {
      double along = 0;
      for (int64_t j = 0; j < tokens; ++j) along += at(p, i * tokens + j) * dp(i, j);
      for (int64_t j = 0; j < tokens; ++j) {
        at(ds, i * tokens + j) = at(p, i * tokens + j) * (dp(i, j) - along);
      }
    }
    return ds;
  }
};

}  // namespace tessera::ops
