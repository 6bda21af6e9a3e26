// SPDX-License-Identifier: Apache-2.0
// Images to normalised numbers: geometry, flip, normalisation. Const calls are safe from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/data/augment/augmenter.h"
#include "tessera/data/loader.h"
#include "tessera/data/resize.h"

namespace tessera::data {

/// Names one appearance of a sample in training: the augmentation is a function of it.
struct SampleKey {
  uint64_t seed = 0;
  int64_t epoch = 0;
  uint64_t sample = 0;
};

class Transform {
 public:
  /// Errors: UserError that names the recipe key on a value out of range.
  explicit Transform(TransformOptions options);

  const TransformOptions& options() const { return options_; }
  /// Numbers of one sample: channels * image_size * image_size.
  int64_t sample_size() const;
  /// Sample `name` (for messages) to `out`: [channels, image_size, image_size] f32. Of an encoded sample only
  /// the part shown is decoded.
  /// Errors: UserError that names the sample and why it cannot be decoded.
  void train(const Stored& stored, const std::string& name, const SampleKey& key, float* out) const;
  void eval(const Stored& stored, const std::string& name, float* out) const;
  /// The same before they become numbers, to `out`: [image_size, image_size, channels] bytes, and what is
  /// erased then.
  std::vector<Erasure> train_bytes(const Stored& stored, const std::string& name, const SampleKey& key,
                                   uint8_t* out) const;
  void eval_bytes(const Stored& stored, const std::string& name, uint8_t* out) const;
  /// [channels]: number = byte * scale + shift, rounded after each.
  const std::vector<float>& scale() const { return scale_; }
  const std::vector<float>& shift() const { return shift_; }
  /// The pictures before they become numbers: image_size x image_size, `channels` channels.
  Image train_image(const Stored& stored, const std::string& name, const SampleKey& key) const;
  Image eval_image(const Stored& stored, const std::string& name) const;
  /// Decodes what train_image() would and drops it: for measuring.
  void decode_only(const Stored& stored, const std::string& name, const SampleKey& key) const;

 private:
  struct View;
  struct Opened;
  Opened open(const Stored& stored, const std::string& name, const View& view) const;
  Image show(const Stored& stored, const std::string& name, const View& view) const;
  View train_view(const SampleKey& key) const;
  Scaling train_scaling(int64_t width, int64_t height, const SampleKey& key) const;
  void normalise(const Image& image, float* out) const;
  void copy_bytes(const Image& image, uint8_t* out) const;

  TransformOptions options_;
  Augmenter augmenter_;
  std::vector<float> scale_, shift_;  // [channels]: number = byte * scale + shift
};

}  // namespace tessera::data
