// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/permutation.h"

#include <algorithm>

namespace tessera::data {
namespace {

// The proof's distance from a uniform shuffle shrinks with every round; Ethereum's consensus shuffles up to
// 2^40 validators with the same number.
constexpr uint64_t kRounds = 90;
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ULL;

// Finaliser of SplitMix64.
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

}  // namespace

int64_t Permutation::operator()(int64_t place) const {
  auto x = static_cast<uint64_t>(place);
  for (uint64_t round = 1; round <= kRounds; ++round) {
    const uint64_t word = mix(key_ + round * kGolden);
    const auto k = static_cast<uint64_t>((static_cast<unsigned __int128>(word) * size_) >> 64);
    const uint64_t partner = k >= x ? k - x : k + size_ - x;
    const uint64_t coin = mix(~word ^ (std::max(x, partner) * kGolden));
    if ((coin >> 63) != 0) x = partner;
  }
  return static_cast<int64_t>(x);
}

}  // namespace tessera::data
