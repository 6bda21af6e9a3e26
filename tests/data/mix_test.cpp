// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/augment/mix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/file.h"
#include "tessera/data/loader.h"
#include "tessera/data/sample_batch.h"
#include "tests/error_text.h"

namespace tessera::data {
namespace {

nlohmann::json expected_mixes() {
  return nlohmann::json::parse(
      read_file(std::string(TESSERA_SOURCE_DIR) + "/tests/data/augment_expected.json"));
}

MixStep mix_step(int64_t batch) { return {5, 17, 0, batch, 0, 1}; }

ImageMixing both(MixMode mode) {
  ImageMixing options;
  options.mixup = 0.8;
  options.cutmix = 1.0;
  options.mode = mode;
  return options;
}

TEST(Mix, PartnersAreAnInvolution) {
  for (const int64_t distance : {1, 2, 4, 8}) {
    for (int64_t batch = 1; batch < 40; ++batch) {
      for (int64_t position = 0; position < batch; ++position) {
        const int64_t partner = mix_partner(position, batch, distance);
        ASSERT_GE(partner, 0);
        ASSERT_LT(partner, batch);
        ASSERT_EQ(mix_partner(partner, batch, distance), position);
        const bool whole = position < batch - batch % (2 * distance);
        if (whole) {
          ASSERT_EQ(std::abs(partner - position), distance);
        }
        if (partner == position) {
          ASSERT_TRUE(batch % 2 == 1 && position == batch - 1);
        }
      }
    }
  }
}

TEST(Mix, CutMixBoxesAreTimms) {
  const auto cases = expected_mixes()["cutmix"];
  ASSERT_EQ(cases.size(), 5U);
  for (const auto& c : cases) {
    const Box box = cutmix_box(c["lam"], c["x"], c["y"], c["width"], c["height"]);
    EXPECT_EQ((std::vector<int64_t>{box.x, box.y, box.width, box.height}),
              c["box"].get<std::vector<int64_t>>())
        << c;
  }
}

// timm's partners are mirrored; given its lambdas and boxes, numbers and targets are the same.
TEST(Mix, NumbersAndTargetsAreTimms) {
  const auto cases = expected_mixes()["mix"];
  ASSERT_EQ(cases.size(), 2U);
  for (const auto& c : cases) {
    const std::vector<float> before = c["before"], mixed = c["mixed"];
    const std::vector<int64_t> labels = c["labels"];
    const std::vector<double> lams = c["lams"];
    constexpr int64_t kHeight = 5, kWidth = 6, kNumbers = 3 * kHeight * kWidth, kClasses = 5;
    size_t centre = 0;
    std::vector<ImageMix> mixes(4);
    for (size_t i = 0; i < lams.size(); ++i) {
      ImageMix& mix = mixes[i];
      mix.share = static_cast<float>(lams[i]);
      mix.cut = c["cuts"][i];
      if (mix.cut && mix.share < 1) {
        mix.box = cutmix_box(lams[i], c["centres"][centre][1], c["centres"][centre][0], kWidth, kHeight);
        ++centre;
        mix.share = 1.0F - static_cast<float>(mix.box.width * mix.box.height) / (kHeight * kWidth);
      }
      if (c["mode"] == "pair") mixes[3 - i] = mix;
    }
    for (size_t i = 0; i < 4; ++i) {
      const float* own = before.data() + static_cast<int64_t>(i) * kNumbers;
      const float* other = before.data() + static_cast<int64_t>(3 - i) * kNumbers;
      std::vector<float> out(own, own + kNumbers);
      apply(mixes[i], other, 3, kHeight, kWidth, out.data());
      for (size_t k = 0; k < out.size(); ++k) {
        ASSERT_NEAR(out[k], mixed[i * kNumbers + k], 2e-6) << c["mode"] << " " << i;
      }
      for (int64_t label = 0; label < kClasses; ++label) {
        const auto smoothed = [&](int64_t truth) { return (label == truth ? 0.9 : 0.0) + 0.1 / kClasses; };
        const double share = static_cast<double>(mixes[i].share);
        EXPECT_NEAR(share * smoothed(labels[i]) + (1 - share) * smoothed(labels[3 - i]),
                    c["targets"][i][label], 1e-6);
      }
    }
  }
}

TEST(Mix, WhatSharesADraw) {
  const MixStep step = mix_step(256);
  const auto share = [&](MixMode mode, int64_t position) {
    return draw_mix(both(mode), step, position, 32, 32).share;
  };
  std::set<float> batch, pair, element;
  for (int64_t position = 0; position < 256; ++position) {
    batch.insert(share(MixMode::kBatch, position));
    pair.insert(share(MixMode::kPair, position));
    element.insert(share(MixMode::kElement, position));
    EXPECT_EQ(share(MixMode::kBatch, position), share(MixMode::kBatch, position / 64 * 64));
    EXPECT_EQ(share(MixMode::kPair, position), share(MixMode::kPair, position ^ 1));
  }
  EXPECT_EQ(batch.size(), 4U);
  EXPECT_GT(pair.size(), 100U);
  EXPECT_GT(element.size(), 200U);
}

TEST(Mix, ProbabilitiesAndShares) {
  const auto count = [](const ImageMixing& options) {
    struct {
      int mixed = 0, cut = 0;
      double share = 0, least = 1;
    } counts;
    const MixStep step = mix_step(20000);
    for (int64_t position = 0; position < step.batch; ++position) {
      const ImageMix mix = draw_mix(options, step, position, 64, 64);
      if (mix.share == 1.0F) continue;
      ++counts.mixed;
      counts.cut += mix.cut ? 1 : 0;
      counts.share += static_cast<double>(mix.share);
      counts.least = std::min(counts.least, static_cast<double>(mix.share));
      if (mix.cut) {
        EXPECT_NEAR(mix.share, 1.0 - static_cast<double>(mix.box.width * mix.box.height) / 4096, 1e-6);
        EXPECT_TRUE(mix.box.x >= 0 && mix.box.x + mix.box.width <= 64);
        EXPECT_TRUE(mix.box.y >= 0 && mix.box.y + mix.box.height <= 64);
      }
    }
    counts.share /= std::max(counts.mixed, 1);
    return counts;
  };
  ImageMixing options = both(MixMode::kElement);
  auto counts = count(options);
  EXPECT_GT(counts.mixed, 19000);  // all but empty boxes
  EXPECT_NEAR(counts.cut, 10000, 900);
  options.switch_probability = 0.2;
  options.probability = 0.5;
  counts = count(options);
  EXPECT_NEAR(counts.mixed, 10000, 500);
  EXPECT_NEAR(counts.cut, 2000, 300);
  options = {};
  options.mixup = 0.2;
  options.mode = MixMode::kElement;
  counts = count(options);
  EXPECT_EQ(counts.cut, 0);
  EXPECT_NEAR(counts.share, 0.5, 0.02);
  options.at_least_half = true;
  counts = count(options);
  EXPECT_GE(counts.least, 0.5);
  EXPECT_GT(counts.share, 0.8);
  options = {};
  options.mode = MixMode::kElement;
  options.cutmix_minmax = {0.25F, 0.5F};
  counts = count(options);
  EXPECT_EQ(counts.cut, counts.mixed);
  EXPECT_GE(counts.least, 0.75);
  options = both(MixMode::kElement);
  options.off_epoch = 3;
  MixStep late = mix_step(64);
  late.epoch = 3;
  for (int64_t position = 0; position < 64; ++position)
    EXPECT_EQ(draw_mix(options, late, position, 8, 8).share, 1);
  late.epoch = 2;
  EXPECT_NE(draw_mix(options, late, 0, 8, 8).share, 1);
}

LoaderOptions share_of(int64_t rank, int64_t world, int64_t accumulation, int64_t workers,
                       const ImageMixing& mix) {
  LoaderOptions options;
  options.seed = 3;
  options.rank = rank;
  options.world = world;
  options.batch = 24;
  options.accumulation = accumulation;
  options.workers = workers;
  options.mix = mix;
  return options;
}

struct Step {
  std::vector<float> images, weights;
  std::vector<int64_t> labels, second_labels;
  std::vector<uint64_t> samples;
  bool operator==(const Step&) const = default;
};

/// Three steps, the micro-batches of all ranks joined in the order of the global batch.
std::vector<Step> all_steps(int64_t world, int64_t accumulation, int64_t workers, const ImageMixing& mix) {
  const auto source = open_source("fake:80", "train", {10, 3, 7});
  TransformOptions transform;
  transform.image_size = 9;
  transform.augment.policy = "rand-m9-mstd0.5-inc1";
  transform.augment.erasing = 0.25;
  transform.augment.erasing_mode = ErasingMode::kPixel;
  std::vector<Step> steps(3);
  for (int64_t rank = 0; rank < world; ++rank) {
    TrainLoader loader(*source, transform, share_of(rank, world, accumulation, workers, mix), 2);
    for (Step& step : steps) {
      for (int64_t micro = 0; micro < accumulation; ++micro) {
        const Batch batch = loader.next();
        const auto append = [](auto* all, const auto& part) {
          all->insert(all->end(), part.begin(), part.end());
        };
        append(&step.images, batch.images);
        append(&step.labels, batch.labels);
        append(&step.second_labels, batch.second_labels);
        append(&step.weights, batch.label_weights);
        append(&step.samples, batch.samples);
      }
    }
  }
  return steps;
}

// Micro-batches of 24, 12, 6, 4, 3, 1: partners together and apart.
TEST(Mix, TheSameStepsAtAnyLayout) {
  for (const MixMode mode : {MixMode::kBatch, MixMode::kPair, MixMode::kElement}) {
    ImageMixing options = both(mode);
    options.group = 6;
    const auto one = all_steps(1, 1, 0, options);
    for (const auto& [world, accumulation, workers] : std::vector<std::array<int64_t, 3>>{
             {1, 1, 3}, {2, 1, 1}, {2, 2, 2}, {3, 2, 0}, {4, 2, 3}, {8, 3, 1}}) {
      EXPECT_EQ(all_steps(world, accumulation, workers, options), one) << world << " x " << accumulation;
    }
    for (const Step& step : one) {
      ASSERT_EQ(step.weights.size(), 24U);
      for (size_t i = 0; i < 24; ++i) {
        EXPECT_EQ(step.second_labels[i], step.labels[step.weights[i] < 1 ? i ^ 1 : i]);
        EXPECT_TRUE(step.weights[i] >= 0 && step.weights[i] <= 1);
      }
    }
    EXPECT_NE(one[0].weights, one[1].weights);
  }
}

// Copies of an image lie in a row: partners are further apart. A short last step is mixed within itself.
TEST(Mix, NoImageMeetsItsOwnCopyAtAnyLayout) {
  const auto source = open_source("fake:20", "train", {10, 3, 20});
  TransformOptions transform;
  transform.image_size = 9;
  ImageMixing mix;
  mix.mixup = 1;
  mix.mode = MixMode::kElement;
  std::vector<std::vector<float>> expected(3);
  for (const int64_t world : {1, 2, 8}) {
    std::vector<std::vector<float>> images(3);
    for (int64_t rank = 0; rank < world; ++rank) {
      LoaderOptions options = share_of(rank, world, 1, 1, mix);
      options.order.repeats = 3;
      options.order.remainder = Remainder::kKeep;
      TrainLoader loader(*source, transform, options, 0);
      for (auto& step : images) {
        const Batch batch = loader.next();
        step.insert(step.end(), batch.images.begin(), batch.images.end());
        if (world > 1) continue;
        for (int64_t i = 0; i < batch.size; ++i) {
          const auto at = static_cast<size_t>(i), other = static_cast<size_t>(mix_partner(i, batch.size, 4));
          EXPECT_EQ(batch.second_labels[at], batch.labels[other]);
          if (i < batch.size / 8 * 8) {
            EXPECT_NE(batch.samples[at] % 20, batch.samples[other] % 20);
          }
        }
      }
    }
    if (world == 1) expected = images;
    EXPECT_EQ(images, expected) << world;
  }
  EXPECT_EQ(expected[0].size(), 20U * 3 * 9 * 9);
  LoaderOptions options;
  for (const auto& [repeats, distance] : std::map<int64_t, int64_t>{{1, 1}, {3, 4}, {4, 4}}) {
    options.order.repeats = repeats;
    EXPECT_EQ(mix_distance(options), distance);
  }
}

TEST(Mix, OffIsAsIfThereWereNone) {
  ImageMixing never = both(MixMode::kElement);
  never.probability = 0;
  const auto plain = all_steps(2, 1, 1, {}), mixed = all_steps(2, 1, 1, never);
  for (size_t s = 0; s < plain.size(); ++s) {
    EXPECT_EQ(plain[s].images, mixed[s].images);
    EXPECT_EQ(plain[s].labels, mixed[s].labels);
    EXPECT_TRUE(plain[s].second_labels.empty());
    EXPECT_EQ(mixed[s].weights, std::vector<float>(24, 1.0F));
  }
}

TEST(Mix, IsTheBlendOfTheTwo) {
  ImageMixing mixup;
  mixup.mixup = 1;
  mixup.mode = MixMode::kElement;
  const auto plain = all_steps(1, 1, 0, {})[0], mixed = all_steps(1, 1, 0, mixup)[0];
  constexpr size_t kNumbers = 3 * 9 * 9;
  for (size_t i = 0; i < 24; ++i) {
    const float share = mixed.weights[i];
    for (size_t k = 0; k < kNumbers; ++k) {
      const float own = plain.images[i * kNumbers + k], other = plain.images[(i ^ 1) * kNumbers + k];
      ASSERT_NEAR(mixed.images[i * kNumbers + k], share * own + (1 - share) * other, 1e-5F);
    }
  }
}

TEST(Mix, Errors) {
  const auto error = [](auto change) {
    ImageMixing options;
    change(options);
    return error_text([&] { check_mix(options); });
  };
  EXPECT_EQ(error([](auto&) {}), "no error");
  EXPECT_EQ(error([](auto& o) { o.mixup = -1; }), "[data.mix] train.mixup is -1: expected at least 0");
  EXPECT_EQ(error([](auto& o) { o.cutmix = -1; }), "[data.mix] train.cutmix is -1: expected at least 0");
  EXPECT_EQ(error([](auto& o) { o.probability = 2; }), "[data.mix] train.mix_prob is 2: expected 0 to 1");
  EXPECT_EQ(error([](auto& o) { o.switch_probability = 2; }),
            "[data.mix] train.mix_switch_prob is 2: expected 0 to 1");
  EXPECT_EQ(error([](auto& o) { o.group = 0; }), "[data.mix] train.mix_group is 0: expected at least 1");
  EXPECT_EQ(error([](auto& o) { o.off_epoch = -1; }),
            "[data.mix] train.mix_off_epoch is -1: expected at least 0");
  EXPECT_EQ(error([](auto& o) { o.cutmix_minmax = {0.5F}; }),
            "[data.mix] the number of values in train.cutmix_minmax is 1: expected 2: the smallest and the "
            "largest side of CutMix boxes");
  EXPECT_EQ(error([](auto& o) {
              o.cutmix_minmax = {0.5F, 0.25F};
            }),
            "[data.mix] train.cutmix_minmax[0] is 0.5: expected two sides of CutMix boxes between 0 and 1, "
            "the smaller first");
  ImageMixing bad;
  bad.mixup = -1;
  bad.cutmix = 1;
  EXPECT_EQ(error_text([&] { all_steps(1, 1, 0, bad); }),
            "[data.mix] train.mixup is -1: expected at least 0");
}

}  // namespace
}  // namespace tessera::data
