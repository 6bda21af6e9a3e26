// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/transform.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/data/crop.h"
#include "tessera/data/orientation.h"
#include "tessera/data/pixel_kernels.h"

namespace tessera::data {
namespace {

constexpr const char* kTransform = "data.transform";

void check(bool good, const char* name, double found, const char* expected) {
  if (!good) user_error({.where = kTransform, .problem = concat(name, " is ", found), .expected = expected});
}

void check_options(const TransformOptions& o) {
  check(o.image_size >= 1, "the image size", static_cast<double>(o.image_size), "at least 1");
  check(o.channels == 1 || o.channels == 3, "the number of channels", static_cast<double>(o.channels),
        "1 or 3");
  check(o.crop_scale_min > 0, "data.crop_scale[0]", o.crop_scale_min, "above 0");
  check(o.crop_scale_max >= o.crop_scale_min && o.crop_scale_max <= 1, "data.crop_scale[1]", o.crop_scale_max,
        "a value between data.crop_scale[0] and 1");
  check(o.crop_ratio_min > 0, "data.crop_ratio[0]", o.crop_ratio_min, "above 0");
  check(o.crop_ratio_max >= o.crop_ratio_min, "data.crop_ratio[1]", o.crop_ratio_max,
        "at least data.crop_ratio[0]");
  check(o.crop_padding >= 0, "data.crop_padding", static_cast<double>(o.crop_padding), "at least 0");
  const bool cut = o.train_crop == TrainCrop::kSquashRandom && o.crop_from != 0;
  check(!cut || o.crop_from >= o.image_size, "data.crop_from", static_cast<double>(o.crop_from),
        "0, or at least the image size");
  check(o.eval_crop_ratio > 0 && o.eval_crop_ratio <= 1, "data.eval_crop_ratio", o.eval_crop_ratio,
        "above 0 and at most 1");
}

/// One value for all channels or one for each.
float channel_value(const std::vector<float>& values, int64_t channel, int64_t channels, const char* name) {
  if (values.size() != 1 && values.size() != static_cast<size_t>(channels)) {
    user_error({.where = kTransform,
                .problem = concat(name, " has ", values.size(), " values"),
                .expected = concat("1 or ", channels)});
  }
  return values.size() == 1 ? values[0] : values[static_cast<size_t>(channel)];
}

uint64_t stream(const SampleKey& key, const char* purpose) {
  return random_key(random_key(random_key(key.seed, purpose), static_cast<uint64_t>(key.epoch)), key.sample);
}

/// The image moved by (x, y) pixels; zeros come in from the sides.
Image moved(const Image& image, int64_t x, int64_t y) {
  Image out{image.width, image.height, image.channels, std::vector<uint8_t>(image.pixels.size())};
  const int64_t count = image.width - std::abs(x), left = std::max<int64_t>(0, x);
  const int64_t last = std::min(image.height, image.height + y);
  for (int64_t row = std::max<int64_t>(0, y); row < last && count > 0; ++row) {
    const int64_t to = row * image.width + left, from = (row - y) * image.width + left - x;
    std::memcpy(out.pixels.data() + to * image.channels, image.pixels.data() + from * image.channels,
                static_cast<size_t>(count * image.channels));
  }
  return out;
}

std::unique_ptr<formats::ImageReader> open_stored(const Stored& stored, const std::string& name, bool exif) {
  if (stored.file.empty() && !stored.pixels.pixels.empty()) return formats::open_pixels(stored.pixels);
  const auto* bytes = reinterpret_cast<const uint8_t*>(stored.file.data());
  return formats::open_image({bytes, stored.file.size()}, name, {formats::kMaxPixels, exif});
}

}  // namespace

/// What is shown of a sample.
struct Transform::View {
  std::function<Scaling(int64_t width, int64_t height)> scaling;  // of the upright picture
  bool flip = false;
  bool may_shrink = false;
};

/// The reader stands before the first row of what is shown.
struct Transform::Opened {
  std::unique_ptr<formats::ImageReader> reader;
  std::optional<Resizer> resizer;
  Turn turn;  // of the resized picture
};

Transform::Transform(TransformOptions options)
    : options_(std::move(options)),
      augmenter_(options_.augment, options_.mean, options_.bicubic ? Filter::kBicubic : Filter::kBilinear) {
  check_options(options_);
  for (int64_t c = 0; c < options_.channels; ++c) {
    const float mean = channel_value(options_.mean, c, options_.channels, "data.mean");
    const float std = channel_value(options_.std, c, options_.channels, "data.std");
    check(std > 0, "data.std", std, "values above 0");
    scale_.push_back(1.0F / (255.0F * std));
    shift_.push_back(-mean / std);
  }
}

int64_t Transform::sample_size() const {
  return options_.channels * options_.image_size * options_.image_size;
}

Scaling Transform::train_scaling(int64_t width, int64_t height, const SampleKey& key) const {
  if (options_.train_crop == TrainCrop::kCenter) return center_scaling(width, height, options_);
  Scaling scaling = squash_scaling(width, height, options_);
  if (options_.train_crop == TrainCrop::kRandomResized) {
    scaling.source = random_resized_crop(width, height, options_, stream(key, "crop"));
  } else if (options_.train_crop == TrainCrop::kInception) {
    scaling.source = inception_crop(width, height, options_, stream(key, "crop"));
  } else if (options_.train_crop == TrainCrop::kSquashRandom) {
    take_random_window(scaling, options_, stream(key, "crop"));
  }
  return scaling;
}

Transform::View Transform::train_view(const SampleKey& key) const {
  const bool flip = options_.flip && (random_word(stream(key, "flip"), 0) & 1) != 0;
  return {[this, key](int64_t width, int64_t height) { return train_scaling(width, height, key); }, flip,
          options_.dct_scaling};
}

Transform::Opened Transform::open(const Stored& stored, const std::string& name, const View& view) const {
  Opened opened{open_stored(stored, name, options_.exif), {}, {}};
  const formats::ImageHeader& header = opened.reader->header();
  const Turn upright = turn_of(header.orientation);
  const Scaling wanted =
      upright.swap ? view.scaling(header.height, header.width) : view.scaling(header.width, header.height);
  const Scaling scaling = to_stored(wanted, upright, header.width, header.height);
  const int64_t shrink = view.may_shrink ? choose_shrink(scaling, header.max_shrink) : 1;
  opened.turn = view.flip ? mirrored(upright) : upright;
  // The resize mirrors rows at no cost.
  opened.resizer.emplace(scaling, shrink, std::exchange(opened.turn.flip_x, false));
  opened.reader->start(opened.resizer->reads(), shrink);
  return opened;
}

Image Transform::show(const Stored& stored, const std::string& name, const View& view) const {
  const Opened opened = open(stored, name, view);
  return turned(opened.resizer->run(*opened.reader, options_.channels), opened.turn);
}

void Transform::decode_only(const Stored& stored, const std::string& name, const SampleKey& key) const {
  const Opened opened = open(stored, name, train_view(key));
  for (int64_t y = 0; y < opened.resizer->reads().height; ++y) opened.reader->next_row();
}

Image Transform::train_image(const Stored& stored, const std::string& name, const SampleKey& key) const {
  const View view = train_view(key);
  Image image = show(stored, name, view);
  if (options_.train_crop != TrainCrop::kPad) return image;
  const auto places = static_cast<uint64_t>(2 * options_.crop_padding + 1);
  const uint64_t draws = stream(key, "crop");
  const int64_t x = options_.crop_padding - static_cast<int64_t>(random_below(draws, 0, places));
  const int64_t y = options_.crop_padding - static_cast<int64_t>(random_below(draws, 1, places));
  return moved(image, view.flip ? -x : x, y);
}

Image Transform::eval_image(const Stored& stored, const std::string& name) const {
  const auto scaling = [this](int64_t width, int64_t height) {
    return eval_scaling(width, height, options_);
  };
  return show(stored, name, {scaling, false, false});
}

void Transform::train(const Stored& stored, const std::string& name, const SampleKey& key, float* out) const {
  Image image = train_image(stored, name, key);
  const uint64_t draws = stream(key, "augment");
  augmenter_.image(draws, &image);
  normalise(image, out);
  augmenter_.numbers(draws, options_.channels, options_.image_size, options_.image_size, out);
}

void Transform::eval(const Stored& stored, const std::string& name, float* out) const {
  normalise(eval_image(stored, name), out);
}

std::vector<Erasure> Transform::train_bytes(const Stored& stored, const std::string& name,
                                            const SampleKey& key, uint8_t* out) const {
  Image image = train_image(stored, name, key);
  const uint64_t draws = stream(key, "augment");
  augmenter_.image(draws, &image);
  copy_bytes(image, out);
  return augmenter_.erasures(draws, options_.channels, options_.image_size, options_.image_size);
}

void Transform::eval_bytes(const Stored& stored, const std::string& name, uint8_t* out) const {
  copy_bytes(eval_image(stored, name), out);
}

void Transform::copy_bytes(const Image& image, uint8_t* out) const {
  TESSERA_CHECK_EQ(static_cast<int64_t>(image.pixels.size()), sample_size());
  std::copy(image.pixels.begin(), image.pixels.end(), out);
}

void Transform::normalise(const Image& image, float* out) const {
  const int64_t size = options_.image_size, channels = options_.channels;
  TESSERA_CHECK_EQ(image.channels, channels);
  TESSERA_CHECK(image.width == size && image.height == size, "", image.width, " x ", image.height);
  const PixelKernels& kernels = pixel_kernels();
  for (int64_t y = 0; y < size; ++y) {
    kernels.normalise(image.pixels.data() + y * size * channels, size, channels, scale_.data(), shift_.data(),
                      size * size, out + y * size);
  }
}

}  // namespace tessera::data
