// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/augment/warp.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "tessera/data/vector_clones.h"

namespace tessera::data {
namespace {

using formats::Image;

// Functions that take vectors are inlined: how they would be passed does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"

// One pixel: its channels are the lanes, the rest is ignored.
typedef int32_t FourInts __attribute__((vector_size(16)));
typedef double FourDoubles __attribute__((vector_size(32)));

/// The image widened to 32 bits, with room to read four numbers at its last pixel. Passed by value: the bytes
/// that are written could otherwise be taken for its fields.
struct Widened {
  int64_t width, height, channels, stride;
  const int32_t* numbers;
};

TESSERA_VECTOR_CLONES
void widen_bytes(const uint8_t* bytes, int64_t count, int32_t* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = bytes[i];
}

inline __attribute__((always_inline)) FourInts four(const int32_t* row, int64_t at) {
  FourInts value;
  std::memcpy(&value, row + at, sizeof value);
  return value;
}

inline __attribute__((always_inline)) FourDoubles doubles(FourInts value) {
  return __builtin_convertvector(value, FourDoubles);
}

inline int64_t floor_of(double x) {
  const auto truncated = static_cast<int64_t>(x);
  return truncated - (x < static_cast<double>(truncated) ? 1 : 0);
}

inline __attribute__((always_inline)) void store(FourDoubles value, int64_t channels, uint8_t* out) {
  const FourDoubles zero = {}, most = {255.0, 255.0, 255.0, 255.0};
  value = value > zero ? value : zero;
  value = value < most ? value : most;
  const FourInts bytes = __builtin_convertvector(value, FourInts);
  out[0] = static_cast<uint8_t>(bytes[0]);
  if (channels == 1) return;
  out[1] = static_cast<uint8_t>(bytes[1]);
  out[2] = static_cast<uint8_t>(bytes[2]);
}

// The differences come first, as in Pillow: a plain area stays exactly what it is.
inline __attribute__((always_inline)) void bilinear_pixel(Widened image, double x, double y, uint8_t* out) {
  const int64_t left = floor_of(x), top = floor_of(y);
  const double dx = x - static_cast<double>(left), dy = y - static_cast<double>(top);
  const int64_t x0 = std::max<int64_t>(left, 0) * image.channels;
  const int64_t x1 = std::min(left + 1, image.width - 1) * image.channels;
  const int32_t* upper = image.numbers + std::max<int64_t>(top, 0) * image.stride;
  const int32_t* lower = image.numbers + std::min(top + 1, image.height - 1) * image.stride;
  const FourDoubles first = doubles(four(upper, x0)) + doubles(four(upper, x1) - four(upper, x0)) * dx;
  const FourDoubles second = doubles(four(lower, x0)) + doubles(four(lower, x1) - four(lower, x0)) * dx;
  store(first + (second - first) * dy, image.channels, out);
}

inline __attribute__((always_inline)) void bicubic_pixel(Widened image, double x, double y, uint8_t* out) {
  const int64_t left = floor_of(x), top = floor_of(y);
  const double dx = x - static_cast<double>(left), dy = y - static_cast<double>(top);
  int64_t columns[4];
  for (int64_t k = 0; k < 4; ++k) {
    columns[k] = std::clamp<int64_t>(left - 1 + k, 0, image.width - 1) * image.channels;
  }
  const auto across = [&](int64_t row) __attribute__((always_inline)) {
    const int32_t* from = image.numbers + std::clamp<int64_t>(row, 0, image.height - 1) * image.stride;
    const FourInts a = four(from, columns[0]), b = four(from, columns[1]), c = four(from, columns[2]),
                   d = four(from, columns[3]);
    const FourDoubles p2 = doubles(c - a), p3 = doubles(2 * (a - b) + c - d), p4 = doubles(b - a - c + d);
    return doubles(b) + dx * (p2 + dx * (p3 + dx * p4));
  };
  if (dy == 0) return store(across(top), image.channels, out);  // shears and translations along x
  const FourDoubles v[4] = {across(top - 1), across(top), across(top + 1), across(top + 2)};
  const FourDoubles p2 = -v[0] + v[2], p3 = 2 * (v[0] - v[1]) + v[2] - v[3], p4 = -v[0] + v[1] - v[2] + v[3];
  store(v[1] + dy * (p2 + dy * (p3 + dy * p4)), image.channels, out);
}

template <bool kCubic>
inline __attribute__((always_inline)) void warp_rows(Widened image, Affine map, Fill fill, uint8_t* out) {
  const auto width = static_cast<double>(image.width), height = static_cast<double>(image.height);
  for (int64_t row = 0; row < image.height; ++row) {
    const double v = static_cast<double>(row) + 0.5;
    for (int64_t column = 0; column < image.width; ++column, out += image.channels) {
      const double u = static_cast<double>(column) + 0.5;
      const double x = map.a * u + map.b * v + map.c, y = map.d * u + map.e * v + map.f;
      if (!(x >= 0 && x < width && y >= 0 && y < height)) {
        for (int64_t c = 0; c < image.channels; ++c) out[c] = fill[static_cast<size_t>(c)];
      } else if (kCubic) {
        bicubic_pixel(image, x - 0.5, y - 0.5, out);
      } else {
        bilinear_pixel(image, x - 0.5, y - 0.5, out);
      }
    }
  }
}

TESSERA_VECTOR_CLONES
void warp_bilinear(Widened image, Affine map, Fill fill, uint8_t* out) {
  warp_rows<false>(image, map, fill, out);
}

TESSERA_VECTOR_CLONES
void warp_bicubic(Widened image, Affine map, Fill fill, uint8_t* out) {
  warp_rows<true>(image, map, fill, out);
}

// Python's round(x, 15): takes what is left of a cosine of 90 degrees away.
double rounded(double x) { return std::nearbyint(x * 1e15) / 1e15; }

}  // namespace

Affine shear_x(double level) { return {1, level, 0, 0, 1, 0}; }
Affine shear_y(double level) { return {1, 0, 0, level, 1, 0}; }
Affine translate_x(double pixels) { return {1, 0, pixels, 0, 1, 0}; }
Affine translate_y(double pixels) { return {1, 0, 0, 0, 1, pixels}; }

Affine rotation(double degrees, int64_t width, int64_t height) {
  const double angle = -degrees * (std::numbers::pi / 180.0);
  const double cosine = rounded(std::cos(angle)), sine = rounded(std::sin(angle));
  const double x = static_cast<double>(width) / 2.0, y = static_cast<double>(height) / 2.0;
  return {cosine, sine, (cosine * -x + sine * -y) + x, -sine, cosine, (-sine * -x + cosine * -y) + y};
}

Image warp(const Image& image, const Affine& map, Filter filter, const Fill& fill) {
  Image out{image.width, image.height, image.channels, {}};
  out.pixels.resize(image.pixels.size());
  std::vector<int32_t> numbers(image.pixels.size() + 4);
  widen_bytes(image.pixels.data(), static_cast<int64_t>(image.pixels.size()), numbers.data());
  const Widened wide{image.width, image.height, image.channels, image.width * image.channels, numbers.data()};
  filter == Filter::kBicubic ? warp_bicubic(wide, map, fill, out.pixels.data())
                             : warp_bilinear(wide, map, fill, out.pixels.data());
  return out;
}

}  // namespace tessera::data
