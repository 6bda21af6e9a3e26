// SPDX-License-Identifier: Apache-2.0
// What each output of one dimension of a resize is made of. Pure functions, safe from any thread.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::data {

enum class Filter { kBilinear, kBicubic };

/// Weights are integers of 22 fraction bits, as Pillow's: 8 bits of pixel and two of headroom fill the 32.
inline constexpr int kFractionBits = 22;

/// Output i is the sum of counts[i] inputs from first[i] on, each times its weight.
struct Taps {
  int64_t stride = 0;  // weights of one output, those beyond its count 0
  std::vector<int32_t> first, counts;
  std::vector<int32_t> weights;  // [outputs, stride]

  int64_t outputs() const { return static_cast<int64_t>(first.size()); }
  const int32_t* of(int64_t i) const { return weights.data() + i * stride; }
  /// Smallest and one beyond the largest input that is read.
  int64_t begin() const;
  int64_t end() const;
  /// Counts inputs from the first one that is read: begin() becomes 0.
  void shift_to_zero();
  /// The outputs in the opposite order: the mirrored picture.
  void mirror();
};

/// A dimension of `inputs` samples, of which [from, from + length) become `out` samples; only outputs
/// [begin, begin + count) are asked for. Antialiased: where samples shrink, the filter grows with the scale.
/// Samples outside [0, inputs) do not exist. Source: Pillow's Resample.c, by its definition.
struct Dimension {
  int64_t inputs = 0;
  double from = 0, length = 0;
  int64_t out = 0, begin = 0, count = 0;
};
Taps make_taps(const Dimension& dimension, Filter filter);

}  // namespace tessera::data
