// Batch normalisation, written once for rows of bf16 and of fp32. Private to the two files that compile it;
// like avx512_math.h without any standard header.
#pragma once

#include "tessera/ops/avx512_batch_norm.h"
#include "tessera/ops/avx512_lanes.h"

namespace tessera::ops::avx512 {
namespace {

constexpr int64_t kNearRows = 16;  // the mean of so many is near the others

// body(lanes, first channel) over all channels.
template <typename Body>
[[gnu::always_inline]] inline void over_channels(int64_t channels, const Body& body) {
  int64_t j = 0;
  for (; j + 16 <= channels; j += 16) body(Whole(), j);
  if (j < channels) body(Rest{first_lanes(channels - j)}, j);
}

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
  const __m512 share = _mm512_set1_ps(1.0F / static_cast<float>(end - begin));
  over_channels(channels, [&](const auto& lanes, int64_t j) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t row = begin; row < end; ++row) sum = _mm512_add_ps(sum, lanes.load(x + row * channels + j));
    lanes.store(near + j, _mm512_mul_ps(sum, share));
  });
}

// What a mask lets through of a gradient; without one all of it.
template <typename T, typename Lanes>
[[gnu::always_inline]] inline __m512 passed(const BatchNormBackward<T>& pass, const Lanes& lanes, int64_t row,
                                            int64_t channels, int64_t j) {
  const __m512 gradient = lanes.load(pass.gradient + row * channels + j);
  if (pass.mask == nullptr) return gradient;
  return _mm512_maskz_mov_ps(pass.mask[row * mask_words(channels) + j / 16], gradient);
}

// Asks for what lies a page further: two arrays read in turn by four rows at once are more streams than the
// prefetcher follows at full rate (a sixth of the time of reading both from memory).
[[gnu::always_inline]] inline void ask_ahead(const void* p) {
  _mm_prefetch(static_cast<const char*>(p) + 4096, _MM_HINT_T0);
}

template <typename T, typename Lanes>
[[gnu::always_inline]] inline void put(const Lanes& lanes, bool past_caches, T* p, __m512 v) {
  past_caches ? lanes.stream(p, v) : lanes.store(p, v);
}

}  // namespace

template <typename T>
void BatchNormRows<T>::moments(const T* x, int64_t begin, int64_t end, int64_t channels, float* sums) {
  float *near = sums, *firsts = sums + channels, *squares = sums + 2 * channels;
  set_near(x, begin, min_of(end, begin + kNearRows), channels, near);
  for (int64_t i = 0; i < 2 * channels; ++i) firsts[i] = 0;
  over_rows(begin, end, [&](auto some, int64_t row) {
    over_channels(channels, [&](const auto& lanes, int64_t j) {
      const __m512 centre = lanes.load(near + j);
      __m512 first = lanes.load(firsts + j), square = lanes.load(squares + j);
      for (int r = 0; r < some.count; ++r) {
        const __m512 centred = _mm512_sub_ps(lanes.load(x + (row + r) * channels + j), centre);
        first = _mm512_add_ps(first, centred);
        square = _mm512_fmadd_ps(centred, centred, square);
      }
      lanes.store(firsts + j, first);
      lanes.store(squares + j, square);
    });
  });
}

template <typename T>
void BatchNormRows<T>::forward(const BatchNormForward<T>& pass, int64_t begin, int64_t end,
                               int64_t channels) {
  const int64_t words = mask_words(channels);
  const __m512 zero = _mm512_setzero_ps();
  over_rows(begin, end, [&](auto some, int64_t row) {
    over_channels(channels, [&](const auto& lanes, int64_t j) {
      const __m512 mean = lanes.load(pass.mean + j), scale = lanes.load(pass.scale + j);
      const __m512 shift = lanes.load(pass.shift + j);
      for (int r = 0; r < some.count; ++r) {
        const int64_t at = (row + r) * channels + j;
        __m512 y = _mm512_fmadd_ps(_mm512_sub_ps(lanes.load(pass.x + at), mean), scale, shift);
        if (pass.residual != nullptr) y = _mm512_add_ps(y, lanes.load(pass.residual + at));
        if (pass.mask != nullptr) {
          pass.mask[(row + r) * words + j / 16] = _mm512_cmp_ps_mask(y, zero, _CMP_NLE_UQ);
        }
        // (The order of max's operands keeps a NaN.)
        put(lanes, pass.past_caches, pass.y + at, pass.relu ? _mm512_max_ps(zero, y) : y);
      }
    });
  });
  if (pass.past_caches) _mm_sfence();
}

template <typename T>
void BatchNormRows<T>::backward_sums(const BatchNormBackward<T>& pass, int64_t begin, int64_t end,
                                     int64_t channels, float* sums) {
  float* products = sums + channels;
  for (int64_t i = 0; i < 2 * channels; ++i) sums[i] = 0;
  over_rows(begin, end, [&](auto some, int64_t row) {
    over_channels(channels, [&](const auto& lanes, int64_t j) {
      const __m512 mean = lanes.load(pass.mean + j);
      __m512 sum = lanes.load(sums + j), product = lanes.load(products + j);
      for (int r = 0; r < some.count; ++r) {
        const int64_t at = (row + r) * channels + j;
        ask_ahead(pass.gradient + at);
        ask_ahead(pass.x + at);
        const __m512 gradient = passed(pass, lanes, row + r, channels, j);
        const __m512 centred = _mm512_sub_ps(lanes.load(pass.x + at), mean);
        sum = _mm512_add_ps(sum, gradient);
        product = _mm512_fmadd_ps(gradient, centred, product);
      }
      lanes.store(sums + j, sum);
      lanes.store(products + j, product);
    });
  });
}

template <typename T>
void BatchNormRows<T>::backward(const BatchNormBackward<T>& pass, int64_t begin, int64_t end,
                                int64_t channels) {
  over_rows(begin, end, [&](auto some, int64_t row) {
    over_channels(channels, [&](const auto& lanes, int64_t j) {
      const __m512 mean = lanes.load(pass.mean + j), of_gradient = lanes.load(pass.of_gradient + j);
      const __m512 of_x = lanes.load(pass.of_x + j), constant = lanes.load(pass.constant + j);
      for (int r = 0; r < some.count; ++r) {
        const int64_t at = (row + r) * channels + j;
        const __m512 gradient = passed(pass, lanes, row + r, channels, j);
        if (pass.residual_gradient != nullptr) {
          put(lanes, pass.past_caches, pass.residual_gradient + at, gradient);
        }
        if (pass.x_gradient == nullptr) continue;
        const __m512 centred = _mm512_sub_ps(lanes.load(pass.x + at), mean);
        const __m512 rest = _mm512_fmadd_ps(centred, of_x, constant);
        put(lanes, pass.past_caches, pass.x_gradient + at, _mm512_fmadd_ps(gradient, of_gradient, rest));
      }
    });
  });
  if (pass.past_caches) _mm_sfence();
}

}  // namespace tessera::ops::avx512
