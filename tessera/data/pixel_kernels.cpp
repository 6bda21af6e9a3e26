// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/pixel_kernels.h"

#include <algorithm>
#include <cstring>

#include "tessera/data/vector_clones.h"

namespace tessera::data {
namespace {

constexpr int32_t kHalf = 1 << (kFractionBits - 1);
constexpr int64_t kBlock = 64;  // sums that are kept in registers

uint8_t to_byte(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> kFractionBits, 0, 255)); }

typedef int32_t FourInts __attribute__((vector_size(16)));

/// One vector a pixel, whose fourth lane is the next pixel's red and is ignored. Reads one number beyond the
/// last pixel.
TESSERA_VECTOR_CLONES
void across_rgb(const uint8_t* row, int64_t count, const Taps& taps, int32_t* wide, uint8_t* out) {
  for (int64_t i = 0; i < 3 * count; ++i) wide[i] = row[i];
  const int32_t *first = taps.first.data(), *counts = taps.counts.data(), *weights = taps.weights.data();
  for (int64_t x = 0; x < taps.outputs(); ++x, weights += taps.stride) {
    const int32_t* pixel = wide + 3 * first[x];
    FourInts sum = {kHalf, kHalf, kHalf, kHalf};
    for (int32_t k = 0; k < counts[x]; ++k, pixel += 3) {
      FourInts value;
      std::memcpy(&value, pixel, sizeof value);
      sum += weights[k] * value;
    }
    for (int c = 0; c < 3; ++c) *out++ = to_byte(sum[c]);
  }
}

TESSERA_VECTOR_CLONES
void across_gray(const uint8_t* row, const Taps& taps, uint8_t* out) {
  const int32_t *first = taps.first.data(), *counts = taps.counts.data(), *weights = taps.weights.data();
  for (int64_t x = 0; x < taps.outputs(); ++x, weights += taps.stride) {
    int32_t sum = kHalf;
    for (int32_t k = 0; k < counts[x]; ++k) sum += weights[k] * row[first[x] + k];
    *out++ = to_byte(sum);
  }
}

PackedTaps pack(const Taps& taps, int64_t inputs) {
  PackedTaps packed;
  packed.taps = &taps;
  packed.row.resize(static_cast<size_t>(3 * inputs + 1));
  return packed;
}

void across(const uint8_t* row, PackedTaps& packed, int64_t channels, uint8_t* out) {
  if (channels == 3) {
    across_rgb(row, static_cast<int64_t>(packed.row.size()) / 3, *packed.taps, packed.row.data(), out);
  } else {
    across_gray(row, *packed.taps, out);
  }
}

TESSERA_VECTOR_CLONES
void down(const uint8_t* const* rows, const int32_t* weights, int64_t taps, int64_t count, uint8_t* out) {
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    int32_t sums[kBlock];
    for (int32_t& sum : sums) sum = kHalf;
    for (int64_t k = 0; k < taps; ++k) {
      const uint8_t* row = rows[k] + begin;
      const int32_t weight = weights[k];
      for (int64_t i = 0; i < kBlock; ++i) sums[i] += weight * row[i];
    }
    const int64_t left = std::min(kBlock, count - begin);
    for (int64_t i = 0; i < left; ++i) out[begin + i] = to_byte(sums[i]);
  }
}

TESSERA_VECTOR_CLONES
void normalise_gray(const uint8_t* row, int64_t width, float scale, float shift, float* out) {
  for (int64_t x = 0; x < width; ++x) out[x] = static_cast<float>(row[x]) * scale + shift;
}

TESSERA_VECTOR_CLONES
void normalise_rgb(const uint8_t* row, int64_t width, const float* scale, const float* shift, int64_t plane,
                   float* out) {
  float *red = out, *green = out + plane, *blue = out + 2 * plane;
  for (int64_t x = 0; x < width; ++x) {
    red[x] = static_cast<float>(row[3 * x]) * scale[0] + shift[0];
    green[x] = static_cast<float>(row[3 * x + 1]) * scale[1] + shift[1];
    blue[x] = static_cast<float>(row[3 * x + 2]) * scale[2] + shift[2];
  }
}

void normalise(const uint8_t* row, int64_t width, int64_t channels, const float* scale, const float* shift,
               int64_t plane, float* out) {
  if (channels == 3) {
    normalise_rgb(row, width, scale, shift, plane, out);
  } else {
    normalise_gray(row, width, *scale, *shift, out);
  }
}

}  // namespace

const PixelKernels& plain_kernels() {
  static constexpr PixelKernels kernels = {"plain", pack, across, down, normalise};
  return kernels;
}

const PixelKernels& pixel_kernels() {
  static const PixelKernels& best = avx512_kernels() != nullptr ? *avx512_kernels() : plain_kernels();
  return best;
}

}  // namespace tessera::data
