#include "tessera/data/transform.h"

#include <algorithm>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/data/crop.h"
#include "tessera/data/resize.h"
#include "tessera/data/vector_clones.h"

namespace tessera::data {
namespace {

constexpr const char* kWhere = "data.transform";

void check(bool good, const char* expected, double found) {
  if (!good) user_error(kWhere, expected, ": found ", found);
}

void check_options(const TransformOptions& o) {
  check(o.image_size >= 1, "an image size of at least 1", static_cast<double>(o.image_size));
  check(o.channels == 1 || o.channels == 3, "1 or 3 channels", static_cast<double>(o.channels));
  check(o.crop_scale_min > 0, "a smallest crop area above 0", o.crop_scale_min);
  check(o.crop_scale_max >= o.crop_scale_min && o.crop_scale_max <= 1,
        "a largest crop area between the smallest and 1", o.crop_scale_max);
  check(o.crop_ratio_min > 0, "a smallest crop aspect ratio above 0", o.crop_ratio_min);
  check(o.crop_ratio_max >= o.crop_ratio_min, "a largest crop aspect ratio not below the smallest",
        o.crop_ratio_max);
  check(o.crop_padding >= 0, "a crop padding of at least 0", static_cast<double>(o.crop_padding));
  check(o.eval_crop_ratio > 0 && o.eval_crop_ratio <= 1, "an evaluation crop ratio above 0 and up to 1",
        o.eval_crop_ratio);
}

/// One value for all channels or one for each.
float channel_value(const std::vector<float>& values, int64_t channel, int64_t channels, const char* name) {
  if (values.size() != 1 && values.size() != static_cast<size_t>(channels)) {
    user_error(kWhere, name, " of 1 or ", channels, " values: found ", values.size());
  }
  return values.size() == 1 ? values[0] : values[static_cast<size_t>(channel)];
}

TESSERA_VECTOR_CLONES
void normalise_gray(const uint8_t* row, int64_t width, float scale, float shift, float* out) {
  for (int64_t x = 0; x < width; ++x) out[x] = static_cast<float>(row[x]) * scale + shift;
}

/// One row of RGB to a row in each of the three planes.
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

void reverse_pixels(uint8_t* row, int64_t width, int64_t channels) {
  if (channels == 1) {
    std::reverse(row, row + width);
    return;
  }
  for (int64_t a = 0, b = width - 1; a < b; ++a, --b)
    std::swap_ranges(row + 3 * a, row + 3 * a + 3, row + 3 * b);
}

}  // namespace

/// Where the square shown lies on an image of image_size: beside it are zeros.
struct Transform::Placement {
  int64_t x = 0, y = 0;
  bool flip = false;
};

Transform::Transform(TransformOptions options)
    : options_(std::move(options)),
      augmenter_(options_.augment, options_.mean, options_.bicubic ? Filter::kBicubic : Filter::kBilinear) {
  check_options(options_);
  for (int64_t c = 0; c < options_.channels; ++c) {
    const float mean = channel_value(options_.mean, c, options_.channels, "a mean");
    const float std = channel_value(options_.std, c, options_.channels, "a standard deviation");
    check(std > 0, "a standard deviation above 0", std);
    scale_.push_back(1.0F / (255.0F * std));
    shift_.push_back(-mean / std);
  }
}

int64_t Transform::sample_size() const {
  return options_.channels * options_.image_size * options_.image_size;
}

Image Transform::whole_at_size(const Image& image) const {
  const int64_t size = options_.image_size;
  const Filter filter = options_.bicubic ? Filter::kBicubic : Filter::kBilinear;
  return resize(image, {{0, 0, image.width, image.height}, size, size, {0, 0, size, size}, filter});
}

void Transform::train(const Image& image, const SampleKey& key, float* out) const {
  const auto stream = [&](const char* purpose) {
    return random_key(random_key(random_key(key.seed, purpose), static_cast<uint64_t>(key.epoch)),
                      key.sample);
  };
  const int64_t size = options_.image_size;
  Placement placement;
  placement.flip = options_.flip && (random_word(stream("flip"), 0) & 1) != 0;
  if (options_.train_crop == TrainCrop::kRandomResized) {
    const Box box = random_resized_crop(image.width, image.height, options_, stream("crop"));
    const Filter filter = options_.bicubic ? Filter::kBicubic : Filter::kBilinear;
    finish_train(resize(image, {box, size, size, {0, 0, size, size}, filter}), placement, stream("augment"),
                 out);
    return;
  }
  if (options_.train_crop == TrainCrop::kPad) {
    const auto places = static_cast<uint64_t>(2 * options_.crop_padding + 1);
    const uint64_t crop = stream("crop");
    placement.x = static_cast<int64_t>(random_below(crop, 0, places)) - options_.crop_padding;
    placement.y = static_cast<int64_t>(random_below(crop, 1, places)) - options_.crop_padding;
  }
  if (image.width == size && image.height == size) {
    finish_train(image, placement, stream("augment"), out);
  } else {
    finish_train(whole_at_size(image), placement, stream("augment"), out);
  }
}

/// Flipped first, then augmented: the operations see what the flip left.
void Transform::finish_train(const Image& image, const Placement& placement, uint64_t key, float* out) const {
  const int64_t size = options_.image_size, channels = options_.channels;
  if (augmenter_.changes_images()) {
    Image placed{size, size, channels, std::vector<uint8_t>(static_cast<size_t>(sample_size()))};
    for (int64_t y = 0; y < size; ++y)
      place_row(image, placement, y, placed.pixels.data() + y * size * channels);
    augmenter_.image(key, &placed);
    emit(placed, {}, out);
  } else {
    emit(image, placement, out);
  }
  augmenter_.numbers(key, channels, size, size, out);
}

void Transform::eval(const Image& image, float* out) const {
  const int64_t size = options_.image_size;
  if (image.width == size && image.height == size && options_.eval_crop == EvalCrop::kSquash) {
    emit(image, {}, out);
  } else {
    emit(resize(image, eval_scaling(image.width, image.height, options_)), {}, out);
  }
}

/// Row y of the image shown, zeros beside it.
void Transform::place_row(const Image& image, const Placement& placement, int64_t y, uint8_t* row) const {
  const int64_t size = options_.image_size, channels = options_.channels;
  const int64_t left = std::clamp<int64_t>(-placement.x, 0, size);  // zeros on the left
  const int64_t count = std::max<int64_t>(0, size - std::abs(placement.x));
  const int64_t from = y + placement.y;
  std::fill(row, row + size * channels, 0);
  if (from >= 0 && from < size && count > 0) {
    const int64_t x = std::max<int64_t>(placement.x, 0);
    std::memcpy(row + left * channels, image.pixels.data() + (from * size + x) * channels,
                static_cast<size_t>(count * channels));
  }
  if (placement.flip) reverse_pixels(row, size, channels);
}

void Transform::emit(const Image& image, const Placement& placement, float* out) const {
  const int64_t size = options_.image_size, channels = options_.channels;
  TESSERA_CHECK_EQ(image.channels, channels);
  TESSERA_CHECK(image.width == size && image.height == size, "", image.width, " x ", image.height);
  std::vector<uint8_t> row(static_cast<size_t>(size * channels));
  for (int64_t y = 0; y < size; ++y) {
    place_row(image, placement, y, row.data());
    if (channels == 3) {
      normalise_rgb(row.data(), size, scale_.data(), shift_.data(), size * size, out + y * size);
    } else {
      normalise_gray(row.data(), size, scale_[0], shift_[0], out + y * size);
    }
  }
}

}  // namespace tessera::data
