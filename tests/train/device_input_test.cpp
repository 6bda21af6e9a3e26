// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/device_input.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/data/open_source.h"
#include "tests/train/uint8_image_batches.h"

namespace tessera::train {
namespace {

TEST(NumbersOf, AreTheHostsForEverySetting) {
  over_picture_batches(
      [](const data::Batch& expected, const data::Batch& batch, const Normalisation& normalisation) {
        if (batch.size == 0) return;
        const at::Tensor found = images_of(batch, normalisation, at::kCPU);
        EXPECT_TRUE(at::equal(found, host_images(expected)))
            << "differs by " << (found - host_images(expected)).abs().max().item<float>();
      });
}

// On a device that is not the CPU, nothing reads memory there or mixes devices.
TEST(NumbersOf, AreMadeWhereTheBytesAre) {
  over_picture_batches(
      [](const data::Batch& expected, const data::Batch& batch, const Normalisation& normalisation) {
        if (batch.size == 0) return;
        const at::Tensor found = images_of(batch, normalisation, at::kMeta);
        EXPECT_TRUE(found.is_meta());
        EXPECT_EQ(found.sizes(), host_images(expected).sizes());
        EXPECT_TRUE(images_of(expected, normalisation, at::kMeta).is_meta());
      });
}

TEST(NumbersOf, AnEvaluationsBatch) {
  const auto source = data::open_source("fake:21", "val", {20, 3, 7});
  data::TransformOptions transform;
  transform.image_size = 15;
  data::LoaderOptions options;
  options.batch = 8;
  data::EvalLoader numbers(*source, transform, options);
  options.as_bytes = true;
  data::EvalLoader bytes(*source, transform, options);
  const DeviceInput input(transform);
  data::Batch expected, batch;
  while (numbers.next(&expected)) {
    ASSERT_TRUE(bytes.next(&batch));
    const DeviceInput::Input found = input.with_images(std::move(batch));
    EXPECT_EQ(found.batch.labels, expected.labels);
    EXPECT_TRUE(at::equal(found.images, host_images(expected)));
  }
}

// The CPU's path stays what it was: the loader's own numbers, where they are, and no batch taken early.
TEST(DeviceInput, OnTheCpuCopiesNothingAndTakesNothingEarly) {
  const auto source = data::open_source("fake:64", "train", {20, 3, 7});
  data::TransformOptions transform;
  transform.image_size = 15;
  data::LoaderOptions options;
  options.batch = 8;
  deliver_for(at::kCPU, &options);
  EXPECT_FALSE(options.as_bytes);
  EXPECT_FALSE(options.picture_memory);
  data::TrainLoader loader(*source, transform, options, 0), same(*source, transform, options, 0);
  DeviceInput input(transform);
  for (int step = 0; step < 5; ++step) {
    DeviceInput::Input found = input.next(loader);
    input.begin_next(loader);
    EXPECT_EQ(found.images.const_data_ptr<float>(), found.batch.images.data());
    EXPECT_EQ(found.batch.samples, same.next().samples);
    input.give_back(loader, std::move(found));
  }
  deliver_for(at::Device(at::kMeta), &options);
  EXPECT_TRUE(options.as_bytes);
  EXPECT_FALSE(options.picture_memory);
}

TEST(Normalisation, IsOneNumberAChannel) {
  data::TransformOptions transform;
  transform.mean = {0.5F};
  transform.std = {0.25F};
  const Normalisation normalisation = Normalisation::of(transform);
  EXPECT_EQ(normalisation.scale, std::vector<float>(3, 1.0F / (255.0F * 0.25F)));
  EXPECT_EQ(normalisation.shift, std::vector<float>(3, -2.0F));
}

}  // namespace
}  // namespace tessera::train
