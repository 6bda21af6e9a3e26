// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/augment/tensorflow_ops.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tessera/data/augment/pixel_ops.h"

namespace tessera::data::tensorflow {

using formats::Image;

void color(Image* image, float factor) {
  if (image->channels != 3) return;
  for (size_t i = 0; i < image->pixels.size(); i += 3) {
    uint8_t* rgb = image->pixels.data() + i;
    const auto share = [](uint8_t level) { return static_cast<float>(level) * (1.0F / 255.0F); };
    const float gray = share(rgb[0]) * 0.2989F + share(rgb[1]) * 0.587F + share(rgb[2]) * 0.114F;
    const auto luma = static_cast<uint8_t>(gray * 255.5F);
    for (int64_t c = 0; c < 3; ++c) rgb[c] = blend(luma, rgb[c], factor);
  }
}

void contrast(Image* image, float factor) {
  const auto plain = static_cast<uint8_t>(std::min<int64_t>(image->width * image->height / 256, 255));
  uint8_t table[256];
  for (int level = 0; level < 256; ++level) table[level] = blend(plain, static_cast<uint8_t>(level), factor);
  map_levels(image, table);
}

void sharpness(Image* image, float factor) {
  const Image before = *image;
  const int64_t step = image->channels, count = image->width * step;
  for (int64_t y = 1; y + 1 < image->height; ++y) {
    for (int64_t i = y * count + step; i < (y + 1) * count - step; ++i) {
      const uint8_t* at = before.pixels.data() + i;
      uint32_t sum = 4U * *at;
      for (const int64_t line : {-count, int64_t{0}, count}) {
        sum += static_cast<uint32_t>(at[line - step]) + at[line] + at[line + step];
      }
      image->pixels[static_cast<size_t>(i)] = blend(static_cast<uint8_t>(sum / 13), *at, factor);
    }
  }
}

void cutout(Image* image, int64_t x, int64_t y, int64_t half, uint8_t level) {
  const int64_t left = std::max<int64_t>(0, x - half), right = std::min(image->width, x + half);
  for (int64_t row = std::max<int64_t>(0, y - half); row < std::min(image->height, y + half); ++row) {
    uint8_t* pixels = image->pixels.data() + row * image->width * image->channels;
    std::fill(pixels + left * image->channels, pixels + right * image->channels, level);
  }
}

Image warp_nearest(const Image& image, const Affine& map, const Fill& fill) {
  Image out{image.width, image.height, image.channels, {}};
  out.pixels.resize(image.pixels.size());
  uint8_t* pixel = out.pixels.data();
  for (int64_t row = 0; row < image.height; ++row) {
    const auto v = static_cast<double>(row);
    for (int64_t column = 0; column < image.width; ++column, pixel += image.channels) {
      const auto u = static_cast<double>(column);
      const int64_t x = std::lround(map.a * u + map.b * v + map.c);
      const int64_t y = std::lround(map.d * u + map.e * v + map.f);
      const bool inside = x >= 0 && x < image.width && y >= 0 && y < image.height;
      const uint8_t* from =
          inside ? image.pixels.data() + (y * image.width + x) * image.channels : fill.data();
      std::copy_n(from, image.channels, pixel);
    }
  }
  return out;
}

Affine rotation(double degrees, int64_t width, int64_t height) {
  const double angle = degrees * (std::numbers::pi / 180.0);
  const double cosine = std::cos(angle), sine = std::sin(angle);
  const double w = static_cast<double>(width - 1), h = static_cast<double>(height - 1);
  const double x = (w - (cosine * w - sine * h)) / 2.0, y = (h - (sine * w + cosine * h)) / 2.0;
  return {cosine, -sine, x, sine, cosine, y};
}

}  // namespace tessera::data::tensorflow
