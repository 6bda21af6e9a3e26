// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/uint8_images.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tessera/data/augment/mix.h"
#include "tessera/data/open_source.h"
#include "tessera/data/transform.h"
#include "tests/data/pixel_source.h"
#include "tests/data/uint8_image_cases.h"

namespace tessera::data {
namespace {

void erase(const Erasure& erasure, const Batch& batch, float* numbers) {
  const auto& [box, contents] = erasure;
  const int64_t area = box.width * box.height;
  for (int64_t c = 0; c < batch.channels; ++c) {
    for (int64_t k = 0; k < area; ++k) {
      const auto count = static_cast<int64_t>(contents.size());
      const int64_t from = count == batch.channels ? c : c * area + k;
      const float value = contents.empty() ? 0.0F : contents[static_cast<size_t>(from)];
      numbers[(c * batch.height + box.y + k / box.width) * batch.width + box.x + k % box.width] = value;
    }
  }
}

/// The three lines at the top of uint8_images.h, word by word.
std::vector<float> numbers_of(const Batch& batch, const Transform& transform) {
  const int64_t plane = batch.height * batch.width, count = batch.channels * plane;
  std::vector<float> rows(static_cast<size_t>(batch.uint8_images.rows * count));
  for (int64_t row = 0; row < batch.uint8_images.rows; ++row) {
    float* numbers = rows.data() + row * count;
    for (int64_t c = 0; c < batch.channels; ++c) {
      for (int64_t k = 0; k < plane; ++k) {
        const auto channel = static_cast<size_t>(c);
        const float scaled = static_cast<float>(batch.uint8_images.row(row)[k * batch.channels + c]) *
                             transform.scale()[channel];
        numbers[c * plane + k] = scaled + transform.shift()[channel];
      }
    }
    for (const Erasure& erasure : batch.uint8_images.erasures[static_cast<size_t>(row)])
      erase(erasure, batch, numbers);
  }
  std::vector<float> mixed(rows.begin(), rows.begin() + batch.size * count);
  for (int64_t i = 0; i < std::ssize(batch.uint8_images.mixes); ++i) {
    const RowMix& mix = batch.uint8_images.mixes[static_cast<size_t>(i)];
    apply(mix.how, rows.data() + mix.other * count, batch.channels, batch.height, batch.width,
          mixed.data() + i * count);
  }
  return mixed;
}

TEST(Uint8Images, GiveTheNumbersOfTheHostForEverySetting) {
  for (const PictureCase& setting : uint8_image_cases()) {
    SCOPED_TRACE(setting.name);
    const auto source = open_source("fake:50", "train", {20, setting.transform.channels, 7});
    const Transform transform(setting.transform);
    int64_t erased = 0, mixed = 0, outside = 0;
    for (int64_t rank = 0; rank < setting.loader.world; ++rank) {
      LoaderOptions options = setting.loader;
      options.rank = rank;
      TrainLoader numbers(*source, setting.transform, options, 5);
      options.as_bytes = true;
      TrainLoader bytes(*source, setting.transform, options, 5);
      for (int64_t step = 0; step < 3 * options.accumulation; ++step) {
        const Batch expected = numbers.next();
        Batch batch = bytes.next();
        ASSERT_EQ(batch.size, expected.size);
        EXPECT_EQ(batch.step_size, expected.step_size);
        EXPECT_TRUE(batch.images.empty());
        EXPECT_EQ(batch.labels, expected.labels);
        EXPECT_EQ(batch.samples, expected.samples);
        EXPECT_EQ(batch.second_labels, expected.second_labels);
        EXPECT_EQ(batch.label_weights, expected.label_weights);
        EXPECT_EQ(numbers_of(batch, transform), expected.images);
        for (const auto& row : batch.uint8_images.erasures) erased += std::ssize(row);
        mixed += std::ranges::count_if(batch.uint8_images.mixes,
                                       [](const RowMix& mix) { return mix.how.share < 1; });
        outside += batch.uint8_images.rows - batch.size;
        bytes.give_back(std::move(batch));
      }
    }
    EXPECT_EQ(erased > 0, setting.transform.augment.erasing > 0);
    EXPECT_EQ(mixed > 0, setting.loader.mix.any());
    EXPECT_EQ(outside > 0, setting.loader.world > 1);
  }
}

TEST(Uint8Images, OfAnEvaluationAreNotAugmented) {
  const auto source = open_source("fake:30", "val", {20, 3, 7});
  TransformOptions transform;
  transform.image_size = 13;
  transform.augment.erasing = 1;
  LoaderOptions options;
  options.batch = 8;
  EvalLoader numbers(*source, transform, options);
  options.as_bytes = true;
  EvalLoader bytes(*source, transform, options);
  Batch expected, batch;
  int64_t samples = 0;
  while (numbers.next(&expected)) {
    ASSERT_TRUE(bytes.next(&batch));
    samples += batch.size;
    EXPECT_EQ(batch.labels, expected.labels);
    EXPECT_EQ(numbers_of(batch, Transform(transform)), expected.images);
  }
  EXPECT_FALSE(bytes.next(&batch));
  EXPECT_EQ(samples, 30);
}

TEST(Uint8Images, LieInTheMemoryAskedForAndAreMadeThereAgain) {
  const Pixels source(64);
  std::set<const uint8_t*> given;
  int64_t bytes = 0;
  LoaderOptions options = share(0, 1, 8, 1, 0);
  options.as_bytes = true;
  options.picture_memory = [&](int64_t wanted) {
    const std::shared_ptr<uint8_t> memory(new uint8_t[static_cast<size_t>(wanted)],
                                          std::default_delete<uint8_t[]>());
    given.insert(memory.get());
    bytes += wanted;
    return memory;
  };
  TrainLoader loader(source, one_pixel(), options, 0);
  for (int step = 0; step < 6; ++step) {
    Batch batch = loader.next();
    EXPECT_TRUE(given.contains(batch.uint8_images.bytes.get()));
    for (int64_t i = 0; i < batch.size; ++i) {
      EXPECT_EQ(*batch.uint8_images.row(i), batch.samples[static_cast<size_t>(i)]);
    }
    loader.give_back(std::move(batch));
  }
  EXPECT_EQ(given.size(), 1U);
  EXPECT_EQ(bytes, 8);
}

TEST(Uint8Images, ABrokenSampleOfAnEvaluationIsBlack) {
  const Pixels source(4, {2});
  LoaderOptions options = share(0, 1, 4, 1, 0);
  options.as_bytes = true;
  options.error_limit = 1;
  EvalLoader loader(source, one_pixel(), options);
  Batch batch;
  ASSERT_TRUE(loader.next(&batch));
  EXPECT_EQ(batch.labels, (std::vector<int64_t>{0, 1, -1, 3}));
  EXPECT_EQ(*batch.uint8_images.row(2), 0);
  EXPECT_EQ(*batch.uint8_images.row(3), 3);
}

}  // namespace
}  // namespace tessera::data
