// SPDX-License-Identifier: Apache-2.0
// Colour jitter, and all augmentation of an image as training applies it.
#include "tessera/data/augment/augmenter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "tessera/base/random.h"
#include "tessera/data/augment/policy.h"
#include "tessera/data/loader.h"
#include "tessera/data/transform.h"
#include "tests/data/augment_picture.h"
#include "tests/error_text.h"

namespace tessera::data {
namespace {

std::vector<Operation> drawn(const Policy& policy, uint64_t key) {
  Draws draws(key);
  return policy.draw(draws, 200, 100);
}

TEST(ColorJitter, DrawsEachFactorAroundOneInAnyOrder) {
  const auto jitter = color_jitter({0.4F, 0.0F, 1.5F, 0.1F});
  std::map<Op, std::pair<double, double>> range;
  std::set<Op> first;
  for (uint64_t key = 0; key < 5000; ++key) {
    const auto operations = drawn(*jitter, key);
    ASSERT_EQ(operations.size(), 3U);
    first.insert(operations[0].op);
    for (const Operation& operation : operations) {
      auto [at, added] = range.try_emplace(operation.op, operation.amount, operation.amount);
      at->second.first = std::min(at->second.first, operation.amount);
      at->second.second = std::max(at->second.second, operation.amount);
    }
  }
  EXPECT_EQ(first, (std::set<Op>{Op::kBrightness, Op::kColor, Op::kHue}));
  EXPECT_NEAR(range[Op::kBrightness].first, 0.6, 0.01);
  EXPECT_NEAR(range[Op::kBrightness].second, 1.4, 0.01);
  EXPECT_NEAR(range[Op::kColor].first, 0.0, 0.01);
  EXPECT_NEAR(range[Op::kColor].second, 2.5, 0.01);
  EXPECT_NEAR(range[Op::kHue].first, -0.1, 0.01);
  EXPECT_EQ(drawn(*color_jitter({0.3F}), 1).size(), 3U);
  const auto error = [](const std::vector<float>& amounts) {
    return error_text([&] { static_cast<void>(color_jitter(amounts)); });
  };
  EXPECT_EQ(error({1, 2}),
            "[data.color_jitter] data.color_jitter has 2 values: expected one for all, three (brightness, "
            "contrast, saturation) or four (and hue)");
  EXPECT_EQ(error({-1}),
            "[data.color_jitter] data.color_jitter has the value -1: expected values of at least 0");
  EXPECT_EQ(error({0, 0, 0, 0.75F}),
            "[data.color_jitter] data.color_jitter has the hue 0.75: expected a hue between 0 and 0.5");
}

// Every policy on every kind of image, the smallest as well: nothing reads or writes beside it.
TEST(Augmenter, AnyPolicyOnAnyImage) {
  for (const char* policy :
       {"rand-m9-n4-mstd0.5-inc1", "rand-m10-n4-p1", "rand-m30-mmax30-n4-p1-inc1", "original", "v0r-mstd101",
        "3a", "ta_wide", "tv-randaug:3,30", "bv-randaug:3,20"}) {
    AugmentOptions options;
    options.policy = policy;
    options.color_jitter = {0.4F, 0.4F, 0.4F, 0.2F};
    options.random_interpolation = true;
    const Augmenter augmenter(options, {0.485F, 0.456F, 0.406F}, Filter::kBilinear);
    ASSERT_TRUE(augmenter.changes_images());
    for (const auto& [width, height, channels] : std::vector<std::array<int64_t, 3>>{
             {1, 1, 3}, {1, 7, 1}, {6, 1, 3}, {2, 2, 3}, {31, 17, 3}, {16, 16, 1}}) {
      const Image before = augment_picture(width, height, channels);
      int changed = 0;
      for (uint64_t key = 0; key < 60; ++key) {
        Image image = before, again = before;
        augmenter.image(key, &image);
        augmenter.image(key, &again);
        ASSERT_EQ(image.width, width);
        ASSERT_EQ(image.height, height);
        ASSERT_EQ(image.channels, channels);
        ASSERT_EQ(image.pixels.size(), before.pixels.size());
        ASSERT_EQ(image.pixels, again.pixels);
        changed += image.pixels != before.pixels ? 1 : 0;
      }
      EXPECT_GT(changed, 30) << policy << " " << width << " x " << height;
    }
  }
}

TEST(Augmenter, PolicyAndJitterHaveStreamsOfTheirOwn) {
  AugmentOptions jitter_only;
  jitter_only.color_jitter = {0.5F};
  AugmentOptions both = jitter_only;
  both.policy = "rand-n1-p0";  // draws, applies nothing
  const Augmenter a(jitter_only, {0.5F}, Filter::kBilinear), b(both, {0.5F}, Filter::kBilinear);
  for (uint64_t key = 0; key < 20; ++key) {
    Image first = augment_picture(20, 20, 3), second = first;
    a.image(key, &first);
    b.image(key, &second);
    EXPECT_EQ(first.pixels, second.pixels);
  }
  EXPECT_FALSE(Augmenter({}, {0.5F}, Filter::kBilinear).changes_images());
}

TEST(Augmenter, WorksInTrainingAndNotInEvaluation) {
  const auto source = open_source("fake:16", "train", {12, 3, 4});
  TransformOptions plain;
  plain.image_size = 12;
  plain.train_crop = TrainCrop::kNone;
  LoaderOptions loader;
  loader.batch = 16;
  loader.workers = 0;
  const auto trained = [&](auto change) {
    TransformOptions transform = plain;
    change(transform.augment);
    return TrainLoader(*source, transform, loader, 0).next().images;
  };
  const auto nothing = [](AugmentOptions&) {};
  EXPECT_EQ(trained(nothing), trained(nothing));
  EXPECT_NE(trained([](auto& o) { o.policy = "3a"; }), trained(nothing));
  EXPECT_NE(trained([](auto& o) { o.color_jitter = {0.4F}; }), trained(nothing));
  EXPECT_NE(trained([](auto& o) { o.erasing = 1; }), trained(nothing));
  const auto erased = trained([](auto& o) { o.erasing = 1; });
  EXPECT_GT(std::count(erased.begin(), erased.end(), 0.0F), 16 * 3 * 2);
  Batch with, without;
  TransformOptions augmented = plain;
  augmented.augment = {"rand-m9-inc1", false, {0.4F}, 1.0};
  ASSERT_TRUE(EvalLoader(*source, augmented, loader).next(&with));
  ASSERT_TRUE(EvalLoader(*source, plain, loader).next(&without));
  EXPECT_EQ(with.images, without.images);
}

/// The levels of sample i of a batch that was normalised with mean 0 and a standard deviation of 1 / 255.
Image levels_of(const Batch& batch, int64_t i) {
  Image image{batch.width, batch.height, batch.channels, {}};
  const int64_t plane = batch.width * batch.height;
  for (int64_t at = 0; at < plane; ++at) {
    for (int64_t c = 0; c < batch.channels; ++c) {
      const float number = batch.images[static_cast<size_t>((i * batch.channels + c) * plane + at)];
      image.pixels.push_back(static_cast<uint8_t>(std::lround(number)));
    }
  }
  return image;
}

// The documented order and streams: flipped, then the policy, from (seed, "augment", epoch, sample).
TEST(Augmenter, SeesTheImageAfterTheFlip) {
  const auto source = open_source("fake:16", "train", {12, 3, 4});
  TransformOptions transform;
  transform.image_size = 12;
  transform.train_crop = TrainCrop::kNone;
  transform.mean = {0};
  transform.std = {1.0F / 255.0F};
  LoaderOptions loader;
  loader.seed = 9;
  loader.batch = 16;
  loader.workers = 0;
  const Batch plain = TrainLoader(*source, transform, loader, 3).next();
  transform.augment.policy = "bv-randaug:2,12";
  const Batch augmented = TrainLoader(*source, transform, loader, 3).next();
  const Augmenter augmenter(transform.augment, transform.mean, Filter::kBilinear);
  for (int64_t i = 0; i < 16; ++i) {
    Image image = levels_of(plain, i);
    const uint64_t sample = plain.samples[static_cast<size_t>(i)];
    augmenter.image(random_key(random_key(random_key(9, "augment"), 3), sample), &image);
    EXPECT_EQ(image.pixels, levels_of(augmented, i).pixels) << i;
  }
}

}  // namespace
}  // namespace tessera::data
