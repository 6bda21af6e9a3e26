// SPDX-License-Identifier: Apache-2.0
// What the loader hands to the training loop.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/data/uint8_images.h"

namespace tessera::data {

/// One micro-batch of one rank. Plain memory, so that this room needs no LibTorch.
struct Batch {
  std::vector<float> images;      // [size, channels, height, width], normalised; empty with bytes
  Uint8Images uint8_images;       // LoaderOptions::as_bytes: instead of images
  std::vector<int64_t> labels;    // [size]
  std::vector<uint64_t> samples;  // [size] index in the source (+ k * its size for copy k of a sample that is
                                  // repeated): names the sample in every random draw
  // Where samples are mixed (augment/mix.h), else empty: label_weights[i] of sample i is labels[i], the rest
  // this one.
  std::vector<int64_t> second_labels;  // [size]
  std::vector<float> label_weights;    // [size], 0..1
  int64_t size = 0;                    // 0: this rank has none of a training step's samples
  int64_t step_size = 0;               // training: samples of the whole step, over ranks and micro-batches
  int64_t channels = 0, height = 0, width = 0;
  bool given_up = false;  // it did not come, and LoaderOptions::give_up ended the wait: size is 0
};

}  // namespace tessera::data
