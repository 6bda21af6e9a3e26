// Images to normalised numbers: geometry, flip, normalisation. Const calls are safe from any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/data/augment/augmenter.h"
#include "tessera/data/loader.h"

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
  /// `out`: [channels, image_size, image_size] f32. Requires: image.channels == options().channels.
  void train(const Image& image, const SampleKey& key, float* out) const;
  void eval(const Image& image, float* out) const;

 private:
  struct Placement;
  void finish_train(const Image& image, const Placement& placement, uint64_t key, float* out) const;
  void place_row(const Image& image, const Placement& placement, int64_t y, uint8_t* row) const;
  void emit(const Image& image, const Placement& placement, float* out) const;
  Image whole_at_size(const Image& image) const;

  TransformOptions options_;
  Augmenter augmenter_;
  std::vector<float> scale_, shift_;  // [channels]: number = byte * scale + shift
};

}  // namespace tessera::data
