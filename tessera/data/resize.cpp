// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/data/pixel_kernels.h"

namespace tessera::data {
namespace {

bool inside(const Box& box, int64_t width, int64_t height) {
  return box.x >= 0 && box.y >= 0 && box.width > 0 && box.height > 0 && box.x + box.width <= width &&
         box.y + box.height <= height;
}

/// The taps of one side of the source, counted from `first`, the first sample of the shrunk source.
/// (More than 5 parameters: the geometry of one side, as numbers.)
Taps side(int64_t from, int64_t length, int64_t shrink, int64_t out, int64_t begin, int64_t count,
          Filter filter, int64_t* first) {
  *first = from / shrink;
  const auto by = static_cast<double>(shrink);
  const int64_t inputs = (from + length + shrink - 1) / shrink - *first;
  const double start = static_cast<double>(from) / by - static_cast<double>(*first);
  return make_taps({inputs, start, static_cast<double>(length) / by, out, begin, count}, filter);
}

void mirror_row(uint8_t* row, int64_t width, int64_t channels) {
  for (int64_t a = 0, b = width - 1; a < b; ++a, --b)
    std::swap_ranges(row + channels * a, row + channels * (a + 1), row + channels * b);
}

/// Rows in the channels that are resized: colour to luma where luma is wanted.
class Rows {
 public:
  Rows(formats::ImageReader& reader, int64_t width, int64_t channels)
      : reader_(reader), width_(width), to_luma_(reader.header().channels == 3 && channels == 1) {
    if (to_luma_) luma_.resize(static_cast<size_t>(width + formats::kRowPadding));
  }
  int64_t channels() const { return to_luma_ ? 1 : reader_.header().channels; }
  const uint8_t* next() {
    const uint8_t* row = reader_.next_row();
    if (!to_luma_) return row;
    formats::luma_of_rgb(row, width_, luma_.data());
    return luma_.data();
  }

 private:
  formats::ImageReader& reader_;
  const int64_t width_;
  const bool to_luma_;
  std::vector<uint8_t> luma_;
};

}  // namespace

Resizer::Resizer(const Scaling& scaling, int64_t shrink, bool mirror)
    : width_(scaling.window.width), height_(scaling.window.height), mirror_(mirror) {
  const Box &source = scaling.source, &window = scaling.window;
  TESSERA_CHECK(source.x >= 0 && source.y >= 0 && source.width > 0 && source.height > 0, "source box");
  TESSERA_CHECK(inside(window, scaling.width, scaling.height), "window");
  if (shrink == 1 && source.width == scaling.width && source.height == scaling.height) {
    reads_ = {source.x + window.x, source.y + window.y, width_, height_};
    return;
  }
  int64_t x = 0, y = 0;
  across_ = side(source.x, source.width, shrink, scaling.width, window.x, width_, scaling.filter, &x);
  down_ = side(source.y, source.height, shrink, scaling.height, window.y, height_, scaling.filter, &y);
  reads_ = {x + across_.begin(), y + down_.begin(), across_.end() - across_.begin(),
            down_.end() - down_.begin()};
  across_.shift_to_zero();
  down_.shift_to_zero();
  if (mirror_) across_.mirror();
}

Image Resizer::run(formats::ImageReader& reader, int64_t channels) const {
  Rows rows(reader, reads_.width, channels);
  Image out{width_, height_, rows.channels(), {}};
  const int64_t row_bytes = width_ * out.channels;
  out.pixels.resize(static_cast<size_t>(row_bytes * height_));
  if (copies()) {
    for (int64_t y = 0; y < height_; ++y) {
      uint8_t* row = out.pixels.data() + y * row_bytes;
      std::memcpy(row, rows.next(), static_cast<size_t>(row_bytes));
      if (mirror_) mirror_row(row, width_, out.channels);
    }
    return formats::convert_channels(std::move(out), channels);
  }
  const PixelKernels& kernels = pixel_kernels();
  PackedTaps packed = kernels.pack(across_, reads_.width);
  // A ring of rows that are scaled across, rounded to bytes between the two passes as Pillow does.
  const int64_t ring_row = row_bytes + formats::kRowPadding;
  std::vector<uint8_t> ring(static_cast<size_t>(ring_row * down_.stride));
  std::vector<const uint8_t*> inputs(static_cast<size_t>(down_.stride));
  int64_t have = 0;
  for (int64_t y = 0; y < height_; ++y) {
    const auto i = static_cast<size_t>(y);
    for (const int64_t end = down_.first[i] + down_.counts[i]; have < end; ++have) {
      kernels.across(rows.next(), packed, out.channels, ring.data() + have % down_.stride * ring_row);
    }
    for (int64_t k = 0; k < down_.counts[i]; ++k) {
      inputs[static_cast<size_t>(k)] = ring.data() + (down_.first[i] + k) % down_.stride * ring_row;
    }
    kernels.down(inputs.data(), down_.of(y), down_.counts[i], row_bytes, out.pixels.data() + y * row_bytes);
  }
  return formats::convert_channels(std::move(out), channels);
}

Image resize(const Image& image, const Scaling& scaling) {
  TESSERA_CHECK(inside(scaling.source, image.width, image.height), "source box");
  const Resizer resizer(scaling);
  const auto reader = formats::open_pixels(image);
  reader->start(resizer.reads(), 1);
  return resizer.run(*reader, image.channels);
}

}  // namespace tessera::data
