// SPDX-License-Identifier: Apache-2.0
// Batch normalisation, written once for rows of bf16 and of fp32. Private to the file that compiles it;
// like vectors.h without any standard header.
#pragma once

#include "tessera/ops/cpu/vector_batch_norm.h"
#include "tessera/ops/cpu/vector_lanes.h"

namespace tessera::ops::vectors {
namespace {

constexpr int64_t kNearRows = 16;  // the mean of so many is near the others

template <int kRows>
struct Rows {
  static constexpr int count = kRows;
};

// body(Rows, first row): four rows at a time, which share what is known of a channel.
template <typename Body>
[[gnu::always_inline]] inline void over_rows(int64_t begin, int64_t end, const Body& body) {
  int64_t row = begin;
  for (; row + 4 <= end; row += 4) body(Rows<4>(), row);
  for (; row < end; ++row) body(Rows<1>(), row);
}

template <typename T>
inline void set_near(const T* x, int64_t begin, int64_t end, int64_t channels, float* near) {
  const Floats share = broadcast(1.0F / static_cast<float>(end - begin));
  over_sixteens(channels, [&](const auto& lanes, int64_t j) {
    Floats sum = zeros();
    for (int64_t row = begin; row < end; ++row) sum = sum + lanes.load(x + row * channels + j);
    lanes.store(near + j, sum * share);
  });
}

// What a mask lets through of a gradient; without one all of it.
template <typename T, typename Lanes>
[[gnu::always_inline]] inline Floats passed(const BatchNormBackward<T>& pass, const Lanes& lanes, int64_t row,
                                            int64_t channels, int64_t j) {
  const Floats gradient = lanes.load(pass.gradient + row * channels + j);
  if (pass.mask == nullptr) return gradient;
  return kept(pass.mask[row * mask_words(channels) + j / 16], gradient);
}

// Asks for what lies a page further: two arrays read in turn by four rows at once are more streams than the
// prefetcher follows at full rate (a sixth of the time of reading both from memory).
[[gnu::always_inline]] inline void ask_ahead(const void* p) {
  _mm_prefetch(static_cast<const char*>(p) + 4096, _MM_HINT_T0);
}

template <typename T, typename Lanes>
[[gnu::always_inline]] inline void put(const Lanes& lanes, bool past_caches, T* p, Floats v) {
  past_caches ? lanes.stream(p, v) : lanes.store(p, v);
}

}  // namespace

template <typename Set, typename T>
void BatchNormRows<Set, T>::moments(const T* x, int64_t begin, int64_t end, int64_t channels, float* sums) {
  float *near = sums, *firsts = sums + channels, *squares = sums + 2 * channels;
  set_near(x, begin, min_of(end, begin + kNearRows), channels, near);
  for (int64_t i = 0; i < 2 * channels; ++i) firsts[i] = 0;
  over_rows(begin, end, [&](auto some, int64_t row) {
    over_sixteens(channels, [&](const auto& lanes, int64_t j) {
      const Floats centre = lanes.load(near + j);
      Floats first = lanes.load(firsts + j), square = lanes.load(squares + j);
      for (int r = 0; r < some.count; ++r) {
        const Floats centred = lanes.load(x + (row + r) * channels + j) - centre;
        first = first + centred;
        square = fmadd(centred, centred, square);
      }
      lanes.store(firsts + j, first);
      lanes.store(squares + j, square);
    });
  });
}

template <typename Set, typename T>
void BatchNormRows<Set, T>::forward(const BatchNormForward<T>& pass, int64_t begin, int64_t end,
                                    int64_t channels) {
  const int64_t words = mask_words(channels);
  const Floats zero = zeros();
  over_rows(begin, end, [&](auto some, int64_t row) {
    over_sixteens(channels, [&](const auto& lanes, int64_t j) {
      const Floats mean = lanes.load(pass.mean + j), scale = lanes.load(pass.scale + j);
      const Floats shift = lanes.load(pass.shift + j);
      for (int r = 0; r < some.count; ++r) {
        const int64_t at = (row + r) * channels + j;
        Floats y = fmadd(lanes.load(pass.x + at) - mean, scale, shift);
        if (pass.residual != nullptr) y = y + lanes.load(pass.residual + at);
        if (pass.mask != nullptr) {
          pass.mask[(row + r) * words + j / 16] = positive_or_nan(y);
        }
        // (The order of max's operands keeps a NaN.)
        put(lanes, pass.past_caches, pass.y + at, pass.relu ? max(zero, y) : y);
      }
    });
  });
  if (pass.past_caches) _mm_sfence();
}

template <typename Set, typename T>
void BatchNormRows<Set, T>::backward_sums(const BatchNormBackward<T>& pass, int64_t begin, int64_t end,
                                          int64_t channels, float* sums) {
  float* products = sums + channels;
  for (int64_t i = 0; i < 2 * channels; ++i) sums[i] = 0;
  over_rows(begin, end, [&](auto some, int64_t row) {
    over_sixteens(channels, [&](const auto& lanes, int64_t j) {
      const Floats mean = lanes.load(pass.mean + j);
      Floats sum = lanes.load(sums + j), product = lanes.load(products + j);
      for (int r = 0; r < some.count; ++r) {
        const int64_t at = (row + r) * channels + j;
        ask_ahead(pass.gradient + at);
        ask_ahead(pass.x + at);
        const Floats gradient = passed(pass, lanes, row + r, channels, j);
        const Floats centred = lanes.load(pass.x + at) - mean;
        sum = sum + gradient;
        product = fmadd(gradient, centred, product);
      }
      lanes.store(sums + j, sum);
      lanes.store(products + j, product);
    });
  });
}

template <typename Set, typename T>
void BatchNormRows<Set, T>::backward(const BatchNormBackward<T>& pass, int64_t begin, int64_t end,
                                     int64_t channels) {
  over_rows(begin, end, [&](auto some, int64_t row) {
    over_sixteens(channels, [&](const auto& lanes, int64_t j) {
      const Floats mean = lanes.load(pass.mean + j), of_gradient = lanes.load(pass.of_gradient + j);
      const Floats of_x = lanes.load(pass.of_x + j), constant = lanes.load(pass.constant + j);
      for (int r = 0; r < some.count; ++r) {
        const int64_t at = (row + r) * channels + j;
        const Floats gradient = passed(pass, lanes, row + r, channels, j);
        if (pass.residual_gradient != nullptr) {
          put(lanes, pass.past_caches, pass.residual_gradient + at, gradient);
        }
        if (pass.x_gradient == nullptr) continue;
        const Floats centred = lanes.load(pass.x + at) - mean;
        const Floats rest = fmadd(centred, of_x, constant);
        put(lanes, pass.past_caches, pass.x_gradient + at, fmadd(gradient, of_gradient, rest));
      }
    });
  });
  if (pass.past_caches) _mm_sfence();
}

}  // namespace tessera::ops::vectors
