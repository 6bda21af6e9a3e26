// SPDX-License-Identifier: Apache-2.0
// Batch normalisation of rows [rows, channels] (a channels-last image: a row is a place of a sample), with a
// residual and ReLU in the same pass. Sums and arithmetic in fp32.
#pragma once

#include <cstdint>

namespace tessera::ops::vectors {

/// Which elements a ReLU let through: a bit for each, by rows, in words of 16 channels.
[[gnu::always_inline]] constexpr int64_t mask_words(int64_t channels) { return (channels + 15) / 16; }

// Element: float, or uint16_t for the bits of bf16. Matrices are [rows, channels], vectors [channels].

template <typename Element>
struct BatchNormForward {
  const Element *x, *residual;        // residual: or null
  const float *mean, *scale, *shift;  // vectors
  Element* y;
  bool relu;
  uint16_t* mask;    // [rows, mask_words] or null
  bool past_caches;  // y is not to stay in them; then channels are a multiple of 16, and y of 64 bytes
};

template <typename Element>
struct BatchNormBackward {
  const Element* gradient;  // of y
  const uint16_t* mask;     // [rows, mask_words], or null: all passed
  const Element* x;
  const float *mean, *of_gradient, *of_x, *constant;  // vectors
  Element *x_gradient, *residual_gradient;            // or null
  bool past_caches;                                   // the same, of the results
};

/// Each works on rows [begin, end). Set: of vector_sets.h.
template <typename Set, typename Element>
struct BatchNormRows {
  /// sums [3, channels]: the mean of the first rows, `near`, and the sums of x - near and of (x - near)^2.
  /// The last is at most max(rows / 16, 1) times the sum of squares about the mean, so few digits drown in
  /// it.
  static void moments(const Element* x, int64_t begin, int64_t end, int64_t channels, float* sums);

  /// y = (x - mean) * scale + shift + residual, with ReLU where asked for; mask: where that is not <= 0.
  static void forward(const BatchNormForward<Element>& pass, int64_t begin, int64_t end, int64_t channels);

  /// sums [2, channels]: of g, the gradient that the mask lets through, and of g * (x - mean).
  static void backward_sums(const BatchNormBackward<Element>& pass, int64_t begin, int64_t end,
                            int64_t channels, float* sums);

  /// x_gradient = g * of_gradient + (x - mean) * of_x + constant; residual_gradient = g. Either where asked
  /// for.
  static void backward(const BatchNormBackward<Element>& pass, int64_t begin, int64_t end, int64_t channels);
};

}  // namespace tessera::ops::vectors
