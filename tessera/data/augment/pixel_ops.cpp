// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/augment/pixel_ops.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/data/vector_clones.h"

namespace tessera::data {
namespace {

using Histogram = std::array<int64_t, 256>;

int64_t numbers(const Image& image) { return static_cast<int64_t>(image.pixels.size()); }

// ITU-R 601, as formats::convert_channels.
uint8_t luma(const uint8_t* rgb) {
  return static_cast<uint8_t>((rgb[0] * 19595U + rgb[1] * 38470U + rgb[2] * 7471U + 0x8000U) >> 16);
}

Histogram histogram(const Image& image, int64_t channel) {
  // Two counts side by side: in plain areas a count would wait for itself.
  std::array<Histogram, 2> halves = {};
  const int64_t step = image.channels, count = numbers(image);
  const uint8_t* pixels = image.pixels.data();
  int64_t i = channel;
  for (; i + step < count; i += 2 * step) {
    ++halves[0][pixels[i]];
    ++halves[1][pixels[i + step]];
  }
  if (i < count) ++halves[0][pixels[i]];
  for (size_t level = 0; level < 256; ++level) halves[0][level] += halves[1][level];
  return halves[0];
}

void map_channel(Image* image, int64_t channel, const uint8_t (&table)[256]) {
  uint8_t* pixels = image->pixels.data();
  const int64_t step = image->channels, count = numbers(*image);
  for (int64_t i = channel; i < count; i += step) pixels[i] = table[pixels[i]];
}

template <typename Function>
void map_each_level(Image* image, Function function) {
  uint8_t table[256];
  for (int level = 0; level < 256; ++level) table[level] = static_cast<uint8_t>(function(level));
  map_levels(image, table);
}

TESSERA_VECTOR_CLONES
void blend_with_luma(uint8_t* pixels, int64_t count, float factor) {
  for (int64_t i = 0; i < count; i += 3) {
    const uint8_t gray = luma(pixels + i);
    for (int64_t c = 0; c < 3; ++c) pixels[i + c] = blend(gray, pixels[i + c], factor);
  }
}

/// The inner pixels of one row blended with the smoothed ones.
/// (More than 5 parameters: a kernel over three lines.)
TESSERA_VECTOR_CLONES
void sharpen_row(const uint8_t* above, const uint8_t* row, const uint8_t* below, int64_t step, int64_t count,
                 float factor, uint8_t* out) {
  for (int64_t i = step; i < count - step; ++i) {
    const uint32_t sum = above[i - step] + above[i] + above[i + step] + row[i - step] + 5U * row[i] +
                         row[i + step] + below[i - step] + below[i] + below[i + step];
    out[i] = blend(static_cast<uint8_t>((sum + 6) / 13), row[i], factor);
  }
}

struct Hsv {
  uint8_t hue, saturation, value;
};

// The widths of the intermediate numbers are Pillow's: they decide which byte a value falls on.
Hsv to_hsv(const uint8_t* rgb) {
  const int most = std::max({rgb[0], rgb[1], rgb[2]}), least = std::min({rgb[0], rgb[1], rgb[2]});
  if (most == least) return {0, 0, static_cast<uint8_t>(most)};
  const auto range = static_cast<float>(most - least);
  const float saturation = range / static_cast<float>(most);
  const auto distance = [&](int c) { return static_cast<float>(most - rgb[c]) / range; };
  const float red = distance(0), green = distance(1), blue = distance(2);
  float sixths = 0;
  if (rgb[0] == most) {
    sixths = blue - green;
  } else if (rgb[1] == most) {
    sixths = static_cast<float>(2.0 + static_cast<double>(red) - static_cast<double>(blue));
  } else {
    sixths = static_cast<float>(4.0 + static_cast<double>(green) - static_cast<double>(red));
  }
  double turns = static_cast<double>(sixths) / 6.0 + 1.0;  // between 5/6 and 11/6
  if (turns >= 1.0) turns -= 1.0;
  const auto byte = [](float x) { return static_cast<uint8_t>(static_cast<double>(x) * 255.0); };
  return {byte(static_cast<float>(turns)), byte(saturation), static_cast<uint8_t>(most)};
}

void to_rgb(const Hsv& hsv, uint8_t* rgb) {
  const uint8_t value = hsv.value;
  if (hsv.saturation == 0) {
    std::fill(rgb, rgb + 3, value);
    return;
  }
  const double sixths = hsv.hue * 6.0 / 255.0;
  const int sector = static_cast<int>(sixths);  // 0..6
  const auto part = static_cast<float>(sixths - static_cast<double>(static_cast<float>(sector)));
  const auto saturation = static_cast<float>(hsv.saturation / 255.0);
  const auto shade = [&](double share) {  // not negative, so that adding a half rounds
    return static_cast<uint8_t>(static_cast<int>(value * (1.0 - share) + 0.5));
  };
  const uint8_t low = shade(static_cast<double>(saturation));
  const uint8_t falling = shade(static_cast<double>(saturation * part));
  const uint8_t rising = shade(static_cast<double>(saturation) * (1.0 - static_cast<double>(part)));
  const uint8_t table[6][3] = {{value, rising, low},  {falling, value, low}, {low, value, rising},
                               {low, falling, value}, {rising, low, value},  {value, low, falling}};
  std::copy_n(table[sector % 6], 3, rgb);
}

}  // namespace

void map_levels(Image* image, const uint8_t (&table)[256]) {
  for (uint8_t& level : image->pixels) level = table[level];
}

void invert(Image* image) {
  map_each_level(image, [](int level) { return 255 - level; });
}

void auto_contrast(Image* image) {
  for (int64_t channel = 0; channel < image->channels; ++channel) {
    const Histogram counts = histogram(*image, channel);
    int least = 0, most = 255;
    while (least < 255 && counts[static_cast<size_t>(least)] == 0) ++least;
    while (most > 0 && counts[static_cast<size_t>(most)] == 0) --most;
    if (most <= least) continue;
    const double scale = 255.0 / (most - least), offset = -least * scale;
    uint8_t table[256];
    for (int level = 0; level < 256; ++level) {
      table[level] = static_cast<uint8_t>(std::clamp(static_cast<int>(level * scale + offset), 0, 255));
    }
    map_channel(image, channel, table);
  }
}

void equalize(Image* image) {
  for (int64_t channel = 0; channel < image->channels; ++channel) {
    const Histogram counts = histogram(*image, channel);
    const auto last = std::find_if(counts.rbegin(), counts.rend(), [](int64_t n) { return n > 0; });
    if (last == counts.rend()) continue;
    const int64_t step = (numbers(*image) / image->channels - *last) / 255;
    if (step == 0) continue;
    uint8_t table[256];
    int64_t sum = step / 2;
    for (size_t level = 0; level < 256; ++level) {
      table[level] = static_cast<uint8_t>(std::min<int64_t>(sum / step, 255));
      sum += counts[level];
    }
    map_channel(image, channel, table);
  }
}

void posterize(Image* image, int64_t bits) {
  TESSERA_CHECK(bits >= 0 && bits <= 8, "", bits);
  const int mask = 0xFF & ~((1 << (8 - bits)) - 1);
  map_each_level(image, [mask](int level) { return level & mask; });
}

void solarize(Image* image, double threshold) {
  map_each_level(image, [threshold](int level) { return level < threshold ? level : 255 - level; });
}

void solarize_add(Image* image, int64_t add, int64_t threshold) {
  map_each_level(image, [&](int level) {
    return level < threshold ? std::min<int64_t>(255, level + add) : static_cast<int64_t>(level);
  });
}

void brightness(Image* image, float factor) {
  map_each_level(image, [factor](int level) { return blend(0, static_cast<uint8_t>(level), factor); });
}

void contrast(Image* image, float factor) {
  int64_t sum = 0;
  const int64_t count = numbers(*image);
  if (count == 0) return;
  if (image->channels == 1) {
    for (const uint8_t level : image->pixels) sum += level;
  } else {
    for (int64_t i = 0; i < count; i += 3) sum += luma(image->pixels.data() + i);
  }
  const double mean = static_cast<double>(sum) / static_cast<double>(count / image->channels);
  const auto plain = static_cast<uint8_t>(mean + 0.5);
  map_each_level(image, [&](int level) { return blend(plain, static_cast<uint8_t>(level), factor); });
}

void color(Image* image, float factor) {
  if (image->channels == 3) blend_with_luma(image->pixels.data(), numbers(*image), factor);
}

void grayscale(Image* image) { color(image, 0.0F); }

void sharpness(Image* image, float factor) {
  const Image before = *image;
  const int64_t step = image->channels, count = image->width * step;
  for (int64_t y = 1; y + 1 < image->height; ++y) {
    const uint8_t* row = before.pixels.data() + y * count;
    sharpen_row(row - count, row, row + count, step, count, factor, image->pixels.data() + y * count);
  }
}

void turn_hue(Image* image, double turns) {
  if (image->channels != 3) return;
  const auto shift = static_cast<uint8_t>(static_cast<int32_t>(turns * 255));
  const int64_t count = numbers(*image);
  for (int64_t i = 0; i < count; i += 3) {
    uint8_t* rgb = image->pixels.data() + i;
    Hsv hsv = to_hsv(rgb);
    hsv.hue = static_cast<uint8_t>(hsv.hue + shift);
    to_rgb(hsv, rgb);
  }
}

}  // namespace tessera::data
