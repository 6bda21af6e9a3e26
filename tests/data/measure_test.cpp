// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/measure.h"

#include <gtest/gtest.h>

#include "tessera/base/file.h"
#include "tests/data/folder_maker.h"
#include "tests/error_text.h"

namespace tessera::data {
namespace {

/// Training on crops of 32 x 32, decoded in full.
TransformOptions small_crops() {
  TransformOptions options;
  options.image_size = 32;
  options.dct_scaling = false;
  return options;
}

TEST(Measure, SaysWhatWasMeasured) {
  // As heavy as ImageNet's: what compresses better flatters every decoder.
  const auto source = open_imagenet_like(10);
  MeasureOptions measure_options;
  measure_options.images = 10;
  measure_options.batch = 5;
  measure_options.rounds = 1;
  measure_options.threads = {0, 2};
  measure_options.transform = small_crops();
  const std::vector<const Source*> sources = {source.get()};
  const Measurement m = measure(sources, measure_options).at(0);
  EXPECT_EQ(m.images, 10);
  EXPECT_GT(m.mean_bytes, 100 * 1024);
  EXPECT_LT(m.mean_bytes, 120 * 1024);
  EXPECT_NEAR(m.mean_width, 471, 1);
  EXPECT_NEAR(m.mean_height, 389, 1);
  ASSERT_EQ(m.stages.size(), 7U);
  EXPECT_EQ(m.stages.front().name, "read");
  EXPECT_EQ(m.stages.back().name, "decode to numbers");
  EXPECT_GT(m.stages.back().seconds, 0);
  ASSERT_EQ(m.pipelines.size(), 2U);
  EXPECT_EQ(m.pipelines[1].threads, 2);
  EXPECT_GT(m.pipelines[1].images_per_second, 0);
  EXPECT_GT(m.pipelines[1].cpu_seconds, 0);
  EXPECT_GT(m.peak_rss_bytes, 1 << 20);
  measure_options.images = 0;
  EXPECT_EQ(error_text([&] { measure(sources, measure_options); }),
            "[data.measure] images, batch and rounds are 0, 5 and 1: expected values of at least 1");
  EXPECT_EQ(error_text([] { open_imagenet_like(0); }),
            "[data.imagenet_like] the number of images is 0: expected at least 1");
}

TEST(Measure, LeavesOutAndNamesWhatIsBroken) {
  const TemporaryFolder folder("tessera-measure");
  for (int i = 0; i < 8; ++i)
    write_image(folder.path() / "train" / "a" / concat(i, ".png"), static_cast<uint8_t>(i), 40);
  write_text(folder.path() / "train" / "a" / "broken.png", "<html>");
  const auto source = open_source("folder:" + folder.path().string(), "train", {.index_dir = "none"});
  MeasureOptions measure_options;
  measure_options.images = 9;
  measure_options.batch = 3;
  measure_options.rounds = 2;
  measure_options.threads = {0, 2};
  measure_options.transform = small_crops();
  std::vector<std::string> named;
  measure_options.warn = [&](const std::string& line) { named.push_back(line); };
  const std::vector<const Source*> sources = {source.get()};
  const Measurement m = measure(sources, measure_options).at(0);
  EXPECT_EQ(m.images, 8);
  EXPECT_EQ(m.broken, 1);
  ASSERT_EQ(named.size(), 1U);
  EXPECT_TRUE(named[0].starts_with("broken sample 8 skipped: [formats.")) << named[0];
  EXPECT_NE(named[0].find("a/broken.png"), std::string::npos) << named[0];
  for (int i = 0; i < 8; ++i) std::filesystem::remove(folder.path() / "train" / "a" / concat(i, ".png"));
  const auto none = open_source("folder:" + folder.path().string(), "train", {.index_dir = "none"});
  const std::vector<const Source*> only_broken = {none.get()};
  EXPECT_TRUE(error_text([&] {
                measure(only_broken, measure_options);
              }).starts_with("[data.measure] none of 1 images can be decoded (the last: "));
}

TEST(Measure, ComparesSourcesWithTheFirst) {
  const auto few = open_imagenet_like(3), more = open_imagenet_like(5);
  const std::vector<const Source*> sources = {few.get(), more.get()};
  MeasureOptions measure_options;
  measure_options.images = 6;
  measure_options.batch = 3;
  measure_options.rounds = 2;
  measure_options.threads = {1, 0};
  measure_options.transform = small_crops();
  const auto all = measure(sources, measure_options);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].images, 3);
  EXPECT_EQ(all[1].images, 5);
  for (const size_t i : {0U, 1U}) {
    EXPECT_EQ(all[0].pipelines[i].speed_ratio, 1);
    EXPECT_EQ(all[0].pipelines[i].cpu_ratio, 1);
    EXPECT_GT(all[1].pipelines[i].speed_ratio, 0);
    EXPECT_GT(all[1].pipelines[i].cpu_ratio, 0);
  }
}

}  // namespace
}  // namespace tessera::data
