// SPDX-License-Identifier: Apache-2.0
// A source of one-pixel images for tests of order and delivery, and loader options to go with it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/data/loader.h"
#include "tessera/data/source.h"

namespace tessera::data {

/// Image i is one pixel of level i % 256, label i % 10; the given samples cannot be read.
class Pixels : public Source {
 public:
  explicit Pixels(int64_t size, std::set<int64_t> broken = {}, std::vector<int64_t> shards = {})
      : size_(size), broken_(std::move(broken)), shards_(std::move(shards)) {}
  int64_t size() const override { return size_; }
  int64_t label(int64_t index) const override { return index % 10; }
  Stored load(int64_t index) const override {
    if (broken_.contains(index))
      user_error({.where = "test.load", .problem = concat("no pixel in ", sample_name(index))});
    return {{}, {1, 1, 1, {static_cast<uint8_t>(index)}}};
  }
  std::string sample_name(int64_t index) const override { return concat("pixel-", index); }
  const std::vector<std::string>& classes() const override { return classes_; }
  std::vector<int64_t> shard_starts() const override { return shards_; }

 private:
  int64_t size_;
  std::set<int64_t> broken_;
  std::vector<int64_t> shards_;
  std::vector<std::string> classes_ = std::vector<std::string>(10, "a digit");
};

inline TransformOptions one_pixel() {
  TransformOptions options;
  options.image_size = 1;
  options.channels = 1;
  options.train_crop = TrainCrop::kNone;
  options.eval_crop = EvalCrop::kSquash;
  options.mean = {0.0F};
  options.std = {1.0F / 255.0F};
  return options;
}

inline LoaderOptions share(int64_t rank, int64_t world, int64_t batch, int64_t accumulation,
                           int64_t workers) {
  LoaderOptions options;
  options.seed = 11;
  options.rank = rank;
  options.world = world;
  options.batch = batch;
  options.accumulation = accumulation;
  options.workers = workers;
  return options;
}

inline void expect_pixels(const Batch& batch) {
  ASSERT_EQ(batch.images.size(), static_cast<size_t>(batch.size));
  for (size_t i = 0; i < batch.images.size(); ++i) {
    EXPECT_NEAR(batch.images[i], static_cast<double>(batch.samples[i] % 256), 1e-3);
    EXPECT_EQ(batch.labels[i], static_cast<int64_t>(batch.samples[i] % 10));
  }
}

}  // namespace tessera::data
