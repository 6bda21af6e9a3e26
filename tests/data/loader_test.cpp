// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "tessera/data/sample_order.h"
#include "tests/data/folder_maker.h"
#include "tests/data/pixel_source.h"
#include "tests/error_text.h"

namespace tessera::data {
namespace {

TEST(Order, StepsPerEpoch) {
  EXPECT_EQ(steps_per_epoch(1000, 128), 7);
  EXPECT_EQ(steps_per_epoch(128, 128), 1);
  EXPECT_EQ(error_text([] { steps_per_epoch(1000, 1024); }),
            "[data.loader] the source has 1,000 samples: expected at least one batch (1,024); choose a "
            "smaller batch");
  EXPECT_EQ(error_text([] { steps_per_epoch(1000, 0); }),
            "[data.loader] the batch is 0: expected at least 1");
}

// The samples of step s are the same at any layout, and go where the contract says.
TEST(TrainLoader, TheSameStepsAtAnyLayout) {
  const Pixels source(100);
  constexpr int64_t kBatch = 24, kSteps = 10;  // 4 steps an epoch: crosses two epochs
  const SampleOrder order(source, 11, kBatch, {});
  for (const auto& [world, accumulation, workers] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {1, 1, 0}, {1, 2, 1}, {2, 1, 2}, {3, 2, 3}, {4, 3, 1}}) {
    for (int64_t rank = 0; rank < world; ++rank) {
      TrainLoader loader(source, one_pixel(), share(rank, world, kBatch, accumulation, workers), 0);
      const int64_t micro = kBatch / (world * accumulation);
      for (int64_t step = 0; step < kSteps; ++step) {
        for (int64_t a = 0; a < accumulation; ++a) {
          const Batch batch = loader.next();
          ASSERT_EQ(batch.size, micro);
          ASSERT_EQ(batch.step_size, kBatch);
          const int64_t begin = (rank * accumulation + a) * micro;
          for (int64_t i = 0; i < micro; ++i) {
            const int64_t expected = order.at(step, begin + i).sample;
            ASSERT_EQ(static_cast<int64_t>(batch.samples[static_cast<size_t>(i)]), expected);
          }
          expect_pixels(batch);
        }
      }
    }
  }
}

// A batch that ranks and micro-batches do not divide: the step's samples once over all of them, in order.
TEST(TrainLoader, AnyBatchIsCutOverTheRanks) {
  const Pixels source(100);
  for (const int64_t size : {1, 3, 21}) {
    const SampleOrder order(source, 11, size, {});
    for (const auto& [world, accumulation] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 2}, {2, 1}, {4, 1}, {4, 3}}) {
      std::vector<std::vector<int64_t>> steps(3);
      for (int64_t rank = 0; rank < world; ++rank) {
        TrainLoader loader(source, one_pixel(), share(rank, world, size, accumulation, 1), 0);
        for (std::vector<int64_t>& samples : steps) {
          for (int64_t a = 0; a < accumulation; ++a) {
            const Batch batch = loader.next();
            ASSERT_EQ(batch.step_size, size);
            expect_pixels(batch);
            samples.insert(samples.end(), batch.samples.begin(), batch.samples.end());
          }
        }
      }
      for (size_t step = 0; step < steps.size(); ++step) {
        std::vector<int64_t> expected;
        for (int64_t i = 0; i < size; ++i) expected.push_back(order.at(static_cast<int64_t>(step), i).sample);
        EXPECT_EQ(steps[step], expected) << size << " on " << world << " x " << accumulation;
      }
    }
  }
}

TEST(TrainLoader, StartsAtAnyStep) {
  const auto source = open_source("fake:40", "train", {12, 3, 4});
  TransformOptions transform;
  transform.image_size = 8;
  for (const int64_t first : {0, 3, 4, 5, 1003}) {
    TrainLoader from_first(*source, transform, share(0, 1, 8, 2, 2), first);
    TrainLoader from_before(*source, transform, share(0, 1, 8, 2, 0), std::max<int64_t>(first - 3, 0));
    for (int64_t i = 0; i < 2 * std::min<int64_t>(first, 3); ++i) from_before.next();
    for (int i = 0; i < 6; ++i) {
      const Batch a = from_first.next(), b = from_before.next();
      EXPECT_EQ(a.samples, b.samples);
      EXPECT_EQ(a.images, b.images);
    }
  }
}

TEST(TrainLoader, BrokenSamplesAreReplacedByTheirSuccessors) {
  const Pixels source(100, {7, 8, 99});
  for (const int64_t workers : {0, 3}) {
    LoaderOptions options = share(0, 1, 25, 1, workers);
    options.error_limit = 0.05;
    std::mutex mutex;
    std::multiset<std::string> warnings;
    options.warn = [&](const std::string& line) {
      const std::lock_guard lock(mutex);
      warnings.insert(line);
    };
    TrainLoader loader(source, one_pixel(), options, 0);
    std::multiset<uint64_t> seen;
    for (int step = 0; step < 8; ++step) {  // two epochs
      const Batch batch = loader.next();
      expect_pixels(batch);
      seen.insert(batch.samples.begin(), batch.samples.end());
    }
    EXPECT_EQ(seen.size(), 200U);
    EXPECT_EQ(seen.count(7) + seen.count(8) + seen.count(99), 0U);
    EXPECT_EQ(seen.count(9), 6U);
    EXPECT_EQ(seen.count(0), 4U);
    EXPECT_EQ(loader.broken_samples(), 3);
    EXPECT_EQ(warnings,
              (std::multiset<std::string>{"broken sample 7 skipped: [test.load] no pixel in pixel-7",
                                          "broken sample 8 skipped: [test.load] no pixel in pixel-8",
                                          "broken sample 99 skipped: [test.load] no pixel in pixel-99"}));
  }
}

TEST(TrainLoader, BrokenSamplesCanEndARun) {
  const Pixels source(100, {7, 8, 9});
  const auto error = [&](bool fail, double limit, const Source& from) {
    LoaderOptions options = share(0, 1, 20, 1, 1);
    options.fail_on_error = fail;
    options.error_limit = limit;
    TrainLoader loader(from, one_pixel(), options, 0);
    return error_text([&] {
      for (int step = 0; step < 5; ++step) loader.next();
    });
  };
  EXPECT_TRUE(error(true, 1.0, source).starts_with("[test.load] no pixel in pixel-"));
  const std::string text = error(false, 0.02, source);
  EXPECT_TRUE(
      text.starts_with("[data.loader] 3 of 100 samples are broken (the last: [test.load] no pixel in pixel-"))
      << text;
  EXPECT_TRUE(text.ends_with(
      "): expected at most 2 % (data.error_limit); repair or remove the files, or raise data.error_limit"))
      << text;
  EXPECT_EQ(error(false, 0.03, source), "no error");
  EXPECT_EQ(error(false, 0.01, Pixels(20, {7})), "no error");  // a single one is borne
  EXPECT_NE(error(false, 0.0, Pixels(20, {7})), "no error");
  std::set<int64_t> all;
  for (int64_t i = 0; i < 20; ++i) all.insert(i);
  EXPECT_TRUE(error(false, 1.0, Pixels(20, all))
                  .starts_with("[data.loader] 20 of 20 samples are broken (the last: "));
  LoaderOptions options = share(0, 1, 20, 20, 0);  // micro-batches of one: the second one finds all known
  options.error_limit = 1.0;
  const Pixels none(20, all);
  TrainLoader loader(none, one_pixel(), options, 0);
  EXPECT_NE(error_text([&] { loader.next(); }), "no error");
  EXPECT_EQ(error_text([&] { loader.next(); }), "[data.loader] none of 20 samples can be read");
}

TEST(TrainLoader, AnImageThatIsNone) {
  const TemporaryFolder temporary("tessera-data");
  for (int i = 0; i < 9; ++i) write_image(temporary.path() / "train" / "a" / concat(i, ".png"), 100);
  write_text(temporary.path() / "train" / "a" / "9.png", "<html>not found</html>");
  const auto source = open_source(temporary.path().string(), "train", {});
  LoaderOptions options = share(0, 1, 10, 1, 2);
  TransformOptions transform;
  transform.image_size = 4;
  std::string warning;
  options.warn = [&](const std::string& line) { warning = line; };
  {
    TrainLoader loader(*source, transform, options, 0);
    const Batch batch = loader.next();
    EXPECT_EQ(std::count(batch.samples.begin(), batch.samples.end(), 0U), 2);
    EXPECT_EQ(loader.broken_samples(), 1);
  }
  const std::string reason =
      "[formats.decode_image] train/a/9.png starts with the bytes 3c 68 74 6d: expected a JPEG or PNG image";
  EXPECT_EQ(warning, "broken sample 9 skipped: " + reason);
  options.fail_on_error = true;
  TrainLoader loader(*source, transform, options, 0);
  EXPECT_EQ(error_text([&] { loader.next(); }), reason);
}

TEST(TrainLoader, Errors) {
  const Pixels source(100);
  const auto error = [&](auto change) {
    LoaderOptions options = share(0, 2, 20, 1, 1);
    change(options);
    return error_text([&] { TrainLoader(source, one_pixel(), options, 0); });
  };
  EXPECT_EQ(error([](auto& o) { o.batch = 0; }), "[data.loader] the batch is 0: expected at least 1");
  EXPECT_EQ(error([](auto& o) { o.rank = 2; }),
            "[data.loader] the rank is 2 of 2: expected a rank below the number of ranks");
  EXPECT_EQ(error([](auto& o) { o.accumulation = 0; }),
            "[data.loader] train.accumulation is 0: expected at least 1");
  EXPECT_EQ(error([](auto& o) { o.workers = -1; }),
            "[data.loader] the number of workers is -1: expected at least 0");
  EXPECT_EQ(error([](auto& o) { o.prefetch = 0; }), "[data.loader] prefetch is 0: expected at least 1");
  EXPECT_EQ(
      error([](auto& o) { o.batch = 200; }),
      "[data.loader] the source has 100 samples: expected at least one batch (200); choose a smaller batch");
}

void expect_every_sample_once(int64_t size, int64_t world, int64_t workers, int64_t batch_of_rank) {
  const Pixels source(size);
  std::vector<int> seen(static_cast<size_t>(size));
  int64_t fewest = INT64_MAX, most = 0;
  for (int64_t rank = 0; rank < world; ++rank) {
    EvalLoader loader(source, one_pixel(), share(rank, world, batch_of_rank * world, 1, workers));
    Batch batch;
    int64_t batches = 0, expected = rank;
    while (loader.next(&batch)) {
      ++batches;
      const int64_t left = (size - expected + world - 1) / world;  // of this rank's share
      ASSERT_EQ(batch.size, std::min(batch_of_rank, left));
      expect_pixels(batch);
      for (const uint64_t sample : batch.samples) {
        ASSERT_EQ(static_cast<int64_t>(sample), expected);
        expected += world;
        ++seen[sample];
      }
    }
    EXPECT_FALSE(loader.next(&batch));
    fewest = std::min(fewest, batches);
    most = std::max(most, batches);
  }
  EXPECT_LE(most - fewest, 1);
  for (const int count : seen) ASSERT_EQ(count, 1);
}

TEST(EvalLoader, EverySampleExactlyOnce) {
  for (const int64_t batch : {1, 7, 32, 2000}) {  // one each, a remainder, and more than there are
    for (const int64_t size : {0, 1, 7, 1000, 1001}) {
      for (int64_t world = 1; world <= 5; ++world) {
        for (int64_t workers = 0; workers <= 4; ++workers) {
          expect_every_sample_once(size, world, workers, batch);
          ASSERT_FALSE(HasFailure()) << batch << " " << size << " " << world << " " << workers;
        }
      }
    }
  }
}

TEST(EvalLoader, ABrokenSampleIsDeliveredAsZeros) {
  const Pixels source(10, {3});
  for (const int64_t workers : {0, 2}) {
    EvalLoader loader(source, one_pixel(), share(0, 1, 10, 1, workers));
    Batch batch;
    ASSERT_TRUE(loader.next(&batch));
    EXPECT_EQ(batch.size, 10);
    EXPECT_EQ(batch.labels[3], -1);
    EXPECT_EQ(batch.images[3], 0.0F);
    EXPECT_EQ(batch.samples[3], 3U);
    EXPECT_EQ(batch.labels[4], 4);
    EXPECT_EQ(loader.broken_samples(), 1);
  }
}

TEST(LoadImage, ThroughTheEvalTransform) {
  const TemporaryFolder temporary("tessera-data");
  write_image(temporary.path() / "a.png", 51, 9);
  TransformOptions options;
  options.image_size = 4;
  options.mean = {0.2F};
  options.std = {0.5F};
  const auto numbers = load_image_for_eval((temporary.path() / "a.png").string(), options);
  ASSERT_EQ(numbers.size(), 48U);
  for (const float number : numbers) EXPECT_NEAR(number, 0.0F, 1e-6F);
  const std::string missing = (temporary.path() / "b.png").string();
  EXPECT_EQ(error_text([&] { load_image_for_eval(missing, options); }),
            "[file.open] cannot open " + missing + ": No such file or directory");
}

}  // namespace
}  // namespace tessera::data
