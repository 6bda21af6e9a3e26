// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/augment/blur.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tessera/data/vector_clones.h"

namespace tessera::data {
namespace {

using formats::Image;

constexpr int kPasses = 3;

/// A box of 2 * whole + 1 lines and a share of the next one on either side; shares of 2^24.
struct BoxFilter {
  int64_t whole = 0;
  uint32_t line_share = 0, edge_share = 0;
};

// Pillow's widths of intermediate numbers: float where it has float.
BoxFilter box_filter(float radius) {
  const float variance = radius * radius / kPasses;
  const auto length = static_cast<float>(std::sqrt(12.0 * static_cast<double>(variance) + 1.0));
  const auto whole = static_cast<float>(std::floor((static_cast<double>(length) - 1.0) / 2.0));
  float part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance);
  part /= 6 * (variance - (whole + 1) * (whole + 1));
  const float half = whole + part;
  BoxFilter box;
  box.whole = static_cast<int64_t>(half);
  box.line_share = static_cast<uint32_t>(static_cast<float>(1U << 24) / (half * 2 + 1));
  box.edge_share = ((1U << 24) - static_cast<uint32_t>(box.whole * 2 + 1) * box.line_share) / 2;
  return box;
}

TESSERA_VECTOR_CLONES
void add_row(const uint8_t* row, uint32_t times, int64_t count, uint32_t* sums) {
  for (int64_t i = 0; i < count; ++i) sums[i] += times * row[i];
}

/// The box moves on by one line: `enters` comes in, `before` goes out and then lies beside it like `after`.
/// (More than 5 parameters: a kernel over three lines.)
TESSERA_VECTOR_CLONES
void blur_row(const uint8_t* enters, const uint8_t* before, const uint8_t* after, BoxFilter box,
              int64_t count, uint32_t* sums, uint8_t* result) {
  for (int64_t i = 0; i < count; ++i) {
    sums[i] += static_cast<uint32_t>(enters[i]) - before[i];
    const uint32_t edges = static_cast<uint32_t>(before[i]) + after[i];
    result[i] = static_cast<uint8_t>((sums[i] * box.line_share + edges * box.edge_share + (1U << 23)) >> 24);
  }
}

/// One pass down the columns. Lines outside the image are its first or last one.
void blur_columns(const Image& image, const BoxFilter& box, Image* result) {
  const int64_t count = image.width * image.channels, last = image.height - 1, whole = box.whole;
  const auto row = [&](int64_t y) { return image.pixels.data() + std::clamp<int64_t>(y, 0, last) * count; };
  std::vector<uint32_t> sums(static_cast<size_t>(count));
  add_row(row(0), static_cast<uint32_t>(whole + 1), count, sums.data());
  for (int64_t y = 0; y < whole; ++y) add_row(row(y), 1, count, sums.data());
  for (int64_t y = 0; y <= last; ++y) {
    blur_row(row(y + whole), row(y - whole - 1), row(y + whole + 1), box, count, sums.data(),
             result->pixels.data() + y * count);
  }
}

Image transpose(const Image& image) {
  constexpr int64_t kTile = 16;  // so that both sides of the copy stay in the cache
  Image turned{image.height, image.width, image.channels, {}};
  turned.pixels.resize(image.pixels.size());
  const int64_t channels = image.channels;
  for (int64_t top = 0; top < image.height; top += kTile) {
    for (int64_t x = 0; x < image.width; ++x) {
      for (int64_t y = top; y < std::min(top + kTile, image.height); ++y) {
        const uint8_t* from = image.pixels.data() + (y * image.width + x) * channels;
        uint8_t* to = turned.pixels.data() + (x * image.height + y) * channels;
        for (int64_t c = 0; c < channels; ++c) to[c] = from[c];
      }
    }
  }
  return turned;
}

void blur_three_times(const BoxFilter& box, Image* image) {
  Image other{image->width, image->height, image->channels, std::vector<uint8_t>(image->pixels.size())};
  for (int pass = 0; pass < kPasses; ++pass) {
    blur_columns(*image, box, &other);
    std::swap(image->pixels, other.pixels);
  }
}

}  // namespace

void gaussian_blur(Image* image, float radius) {
  if (radius <= 0 || image->pixels.empty()) return;
  const BoxFilter box = box_filter(radius);
  Image turned = transpose(*image);  // down the columns neighbouring numbers make vectors
  blur_three_times(box, &turned);
  *image = transpose(turned);
  blur_three_times(box, image);
}

}  // namespace tessera::data
