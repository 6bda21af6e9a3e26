// SPDX-License-Identifier: Apache-2.0
// Cases in which every pair of values of two factors occurs at least once.
#pragma once

#include <cstddef>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace tessera::testing {

/// `sizes`: values of each factor. Each case has a value of each: found greedily, the same on every run.
inline std::vector<std::vector<size_t>> pairwise_cases(const std::vector<size_t>& sizes) {
  using Pair = std::tuple<size_t, size_t, size_t, size_t>;  // factors, values
  std::set<Pair> open;
  for (size_t a = 0; a < sizes.size(); ++a) {
    for (size_t b = a + 1; b < sizes.size(); ++b) {
      for (size_t i = 0; i < sizes[a]; ++i) {
        for (size_t k = 0; k < sizes[b]; ++k) open.insert({a, b, i, k});
      }
    }
  }
  const auto pairs_of = [&](const std::vector<size_t>& one) {
    std::vector<Pair> pairs;
    for (size_t a = 0; a < one.size(); ++a) {
      for (size_t b = a + 1; b < one.size(); ++b) pairs.push_back({a, b, one[a], one[b]});
    }
    return pairs;
  };
  std::mt19937 random(5);
  std::vector<std::vector<size_t>> cases;
  while (!open.empty()) {
    std::vector<size_t> best;
    size_t most = 0;
    for (int attempt = 0; attempt < 200; ++attempt) {
      std::vector<size_t> one;
      for (const size_t size : sizes) one.push_back(random() % size);
      const auto [a, b, i, k] = *open.begin();  // which every attempt covers
      one[a] = i;
      one[b] = k;
      size_t covered = 0;
      for (const Pair& pair : pairs_of(one)) covered += open.count(pair);
      if (covered > most) std::tie(most, best) = std::pair(covered, one);
    }
    for (const Pair& pair : pairs_of(best)) open.erase(pair);
    cases.push_back(best);
  }
  return cases;
}

}  // namespace tessera::testing
