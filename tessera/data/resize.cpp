#include "tessera/data/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/data/vector_clones.h"

namespace tessera::data {
namespace {

// Weights are integers of 22 fraction bits, as Pillow's: 8 bits of pixel and two of headroom fill the 32.
constexpr int kFractionBits = 22;
constexpr int32_t kHalf = 1 << (kFractionBits - 1);

/// What each output of one dimension is made of: counts[i] inputs from first[i] on.
struct Taps {
  int64_t stride = 0;  // weights of one output
  std::vector<int64_t> first, counts;
  std::vector<int32_t> weights;

  const int32_t* of(int64_t i) const { return weights.data() + i * stride; }
  int64_t begin() const { return first.front(); }
  int64_t end() const { return first.back() + counts.back(); }
};

double bilinear(double x) { return std::max(0.0, 1.0 - std::abs(x)); }

// Keys' cubic with a = -1/2.
double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
  if (x < 2.0) return ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a;
  return 0.0;
}

/// Outputs [begin, begin + length) of `in` samples scaled to `out`.
Taps make_taps(int64_t in, int64_t out, int64_t begin, int64_t length, Filter filter) {
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double stretch = std::max(scale, 1.0);  // a filter narrower than one input would skip inputs
  const double support = (filter == Filter::kBicubic ? 2.0 : 1.0) * stretch;
  Taps taps;
  taps.stride = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  taps.weights.resize(static_cast<size_t>(taps.stride * length));
  std::vector<double> raw;
  for (int64_t i = 0; i < length; ++i) {
    const double center = (static_cast<double>(begin + i) + 0.5) * scale;
    const int64_t low = std::max<int64_t>(0, static_cast<int64_t>(center - support + 0.5));
    const int64_t high = std::min(in, static_cast<int64_t>(center + support + 0.5));
    double sum = 0.0;
    raw.clear();
    for (int64_t k = low; k < high; ++k) {
      const double x = (static_cast<double>(k) - center + 0.5) * (1.0 / stretch);
      raw.push_back(filter == Filter::kBicubic ? bicubic(x) : bilinear(x));
      sum += raw.back();
    }
    int32_t* weights = taps.weights.data() + i * taps.stride;
    for (const double weight : raw) {
      const double scaled = weight / sum * (1 << kFractionBits);
      *weights++ = static_cast<int32_t>(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
    }
    taps.first.push_back(low);
    taps.counts.push_back(high - low);
  }
  return taps;
}

uint8_t to_byte(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> kFractionBits, 0, 255)); }

TESSERA_VECTOR_CLONES
void widen(const uint8_t* bytes, int64_t count, int32_t* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = bytes[i];
}

typedef int32_t FourInts __attribute__((vector_size(16)));

/// The horizontal pass over one row of RGB: one vector a pixel, whose fourth lane is the next pixel's red and
/// is ignored. Reads one number beyond the last pixel.
TESSERA_VECTOR_CLONES
void blend_columns_rgb(const int32_t* row, const Taps& taps, uint8_t* out) {
  for (size_t x = 0; x < taps.first.size(); ++x) {
    const int32_t* pixel = row + (taps.first[x] - taps.begin()) * 3;
    const int32_t* weights = taps.of(static_cast<int64_t>(x));
    FourInts sum = {kHalf, kHalf, kHalf, kHalf};
    for (int64_t k = 0; k < taps.counts[x]; ++k, pixel += 3) {
      FourInts value;
      std::memcpy(&value, pixel, sizeof value);
      sum += weights[k] * value;
    }
    for (int c = 0; c < 3; ++c) *out++ = to_byte(sum[c]);
  }
}

void blend_columns_gray(const int32_t* row, const Taps& taps, uint8_t* out) {
  for (size_t x = 0; x < taps.first.size(); ++x) {
    const int32_t* pixel = row + taps.first[x] - taps.begin();
    const int32_t* weights = taps.of(static_cast<int64_t>(x));
    int32_t sum = kHalf;
    for (int64_t k = 0; k < taps.counts[x]; ++k) sum += weights[k] * pixel[k];
    *out++ = to_byte(sum);
  }
}

/// out[i] = sum over k of weights[k] * rows[k * count + i]: one row of the vertical pass. `sums`: scratch.
TESSERA_VECTOR_CLONES
void blend_rows(const uint8_t* rows, const int32_t* weights, int64_t taps, int64_t count, int32_t* sums,
                uint8_t* out) {
  std::fill_n(sums, count, kHalf);
  for (int64_t k = 0; k < taps; ++k) {
    const uint8_t* row = rows + k * count;
    const int32_t weight = weights[k];
    for (int64_t i = 0; i < count; ++i) sums[i] += weight * row[i];
  }
  for (int64_t i = 0; i < count; ++i) out[i] = to_byte(sums[i]);
}

bool inside(const Box& box, int64_t width, int64_t height) {
  return box.x >= 0 && box.y >= 0 && box.width > 0 && box.height > 0 && box.x + box.width <= width &&
         box.y + box.height <= height;
}

Image crop(const Image& image, const Box& box) {
  Image out{box.width, box.height, image.channels, {}};
  const size_t row = static_cast<size_t>(box.width * image.channels);
  out.pixels.resize(row * static_cast<size_t>(box.height));
  for (int64_t y = 0; y < box.height; ++y) {
    std::memcpy(out.pixels.data() + static_cast<size_t>(y) * row,
                image.pixels.data() + ((box.y + y) * image.width + box.x) * image.channels, row);
  }
  return out;
}

}  // namespace

Image resize(const Image& image, const Scaling& scaling) {
  const Box &source = scaling.source, &window = scaling.window;
  TESSERA_CHECK(inside(source, image.width, image.height), "source box");
  TESSERA_CHECK(inside(window, scaling.width, scaling.height), "window");
  if (source.width == scaling.width && source.height == scaling.height) {
    return crop(image, {source.x + window.x, source.y + window.y, window.width, window.height});
  }
  const Taps down = make_taps(source.height, scaling.height, window.y, window.height, scaling.filter);
  const Taps across = make_taps(source.width, scaling.width, window.x, window.width, scaling.filter);
  // Rounded to bytes between the two passes, as Pillow does.
  const int64_t in_count = (across.end() - across.begin()) * image.channels;
  const int64_t out_count = window.width * image.channels;
  const int64_t rows = down.end() - down.begin();
  std::vector<uint8_t> middle(static_cast<size_t>(rows * out_count));
  std::vector<int32_t> row(static_cast<size_t>(std::max(in_count + 1, out_count)));
  for (int64_t y = 0; y < rows; ++y) {
    const int64_t first = (source.y + down.begin() + y) * image.width + source.x + across.begin();
    widen(image.pixels.data() + first * image.channels, in_count, row.data());
    (image.channels == 3 ? blend_columns_rgb : blend_columns_gray)(row.data(), across,
                                                                   middle.data() + y * out_count);
  }
  Image out{window.width, window.height, image.channels, {}};
  out.pixels.resize(static_cast<size_t>(window.height * out_count));
  for (int64_t y = 0; y < window.height; ++y) {
    const auto i = static_cast<size_t>(y);
    blend_rows(middle.data() + (down.first[i] - down.begin()) * out_count, down.of(y), down.counts[i],
               out_count, row.data(), out.pixels.data() + y * out_count);
  }
  return out;
}

}  // namespace tessera::data
