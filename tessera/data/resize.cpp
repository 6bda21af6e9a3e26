#include "tessera/data/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/data/vector_clones.h"

namespace tessera::data {
namespace {

/// What each output of one dimension is made of: counts[i] inputs from first[i] on.
struct Taps {
  int64_t stride = 0;  // weights of one output
  std::vector<int64_t> first, counts;
  std::vector<float> weights;

  const float* of(int64_t i) const { return weights.data() + i * stride; }
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
  for (int64_t i = 0; i < length; ++i) {
    const double center = (static_cast<double>(begin + i) + 0.5) * scale;
    const int64_t low = std::max<int64_t>(0, static_cast<int64_t>(center - support + 0.5));
    const int64_t high = std::min(in, static_cast<int64_t>(center + support + 0.5));
    double sum = 0.0;
    std::vector<double> raw(static_cast<size_t>(high - low));
    for (int64_t k = low; k < high; ++k) {
      const double x = (static_cast<double>(k) - center + 0.5) / stretch;
      sum += raw[static_cast<size_t>(k - low)] = filter == Filter::kBicubic ? bicubic(x) : bilinear(x);
    }
    float* weights = taps.weights.data() + i * taps.stride;
    for (const double weight : raw) *weights++ = static_cast<float>(weight / sum);
    taps.first.push_back(low);
    taps.counts.push_back(high - low);
  }
  return taps;
}

/// out[i] = sum over k of weights[k] * rows[k * row_stride + i]: one output row of the vertical pass.
TESSERA_VECTOR_CLONES
void blend_rows(const uint8_t* rows, int64_t row_stride, const float* weights, int64_t taps, int64_t count,
                float* out) {
  std::fill_n(out, count, 0.0F);
  int64_t k = 0;
  for (; k + 1 < taps; k += 2) {
    const uint8_t* a = rows + k * row_stride;
    const uint8_t* b = a + row_stride;
    const float wa = weights[k], wb = weights[k + 1];
    for (int64_t i = 0; i < count; ++i)
      out[i] += wa * static_cast<float>(a[i]) + wb * static_cast<float>(b[i]);
  }
  for (; k < taps; ++k) {
    const uint8_t* a = rows + k * row_stride;
    const float w = weights[k];
    for (int64_t i = 0; i < count; ++i) out[i] += w * static_cast<float>(a[i]);
  }
}

/// In place to [0, 255]: bicubic overshoots.
TESSERA_VECTOR_CLONES
void clamp_row(float* row, int64_t count) {
  for (int64_t i = 0; i < count; ++i) row[i] = std::clamp(row[i], 0.0F, 255.0F);
}

uint8_t to_byte(float value) { return static_cast<uint8_t>(std::clamp(value, 0.0F, 255.0F) + 0.5F); }

typedef float FourFloats __attribute__((vector_size(16)));

/// The horizontal pass over one row of RGB: one vector a pixel, whose fourth lane is the next pixel's red and
/// is ignored. Reads one float beyond the last pixel.
void blend_columns_rgb(const float* row, const Taps& taps, uint8_t* out) {
  for (size_t x = 0; x < taps.first.size(); ++x) {
    const float* pixel = row + (taps.first[x] - taps.begin()) * 3;
    const float* weights = taps.of(static_cast<int64_t>(x));
    FourFloats sum = {};
    for (int64_t k = 0; k < taps.counts[x]; ++k, pixel += 3) {
      FourFloats value;
      std::memcpy(&value, pixel, sizeof value);
      sum += weights[k] * value;
    }
    for (int c = 0; c < 3; ++c) *out++ = to_byte(sum[c]);
  }
}

void blend_columns_gray(const float* row, const Taps& taps, uint8_t* out) {
  for (size_t x = 0; x < taps.first.size(); ++x) {
    const float* pixel = row + taps.first[x] - taps.begin();
    const float* weights = taps.of(static_cast<int64_t>(x));
    float sum = 0.0F;
    for (int64_t k = 0; k < taps.counts[x]; ++k) sum += weights[k] * pixel[k];
    *out++ = to_byte(sum);
  }
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
  const int64_t stride = image.width * image.channels;
  const int64_t count = (across.end() - across.begin()) * image.channels;
  const uint8_t* corner =
      image.pixels.data() + source.y * stride + (source.x + across.begin()) * image.channels;
  std::vector<float> row(static_cast<size_t>(count) + 1);
  Image out{window.width, window.height, image.channels, {}};
  out.pixels.resize(static_cast<size_t>(window.width * window.height * image.channels));
  for (int64_t y = 0; y < window.height; ++y) {
    const auto i = static_cast<size_t>(y);
    blend_rows(corner + down.first[i] * stride, stride, down.of(y), down.counts[i], count, row.data());
    if (scaling.filter == Filter::kBicubic) clamp_row(row.data(), count);
    uint8_t* target = out.pixels.data() + y * window.width * image.channels;
    (image.channels == 3 ? blend_columns_rgb : blend_columns_gray)(row.data(), across, target);
  }
  return out;
}

}  // namespace tessera::data
