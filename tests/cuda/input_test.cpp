// SPDX-License-Identifier: Apache-2.0
// Batches that became numbers on a GPU, against the host's.
#include <ATen/ATen.h>

#include "gpu.h"
#include "tessera/data/open_source.h"
#include "tessera/eager/device_input.h"
#include "tests/data/uint8_image_cases.h"

namespace tessera::eager {
namespace {

TEST(CudaInput, NumbersAreTheHostsForEverySetting) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device device = testing::use_gpu(0);
  for (const data::PictureCase& setting : data::uint8_image_cases()) {
    SCOPED_TRACE(setting.name);
    const auto source = data::open_source("fake:56", "train", {20, setting.transform.channels, 7});
    data::LoaderOptions options = setting.loader;
    data::TrainLoader numbers(*source, setting.transform, options, 0);
    deliver_for(device, &options);
    data::TrainLoader bytes(*source, setting.transform, options, 0);
    DeviceInput input(setting.transform, device);
    for (int step = 0; step < 4; ++step) {
      const data::Batch expected = numbers.next();
      DeviceInput::Input found = input.next(bytes);
      input.begin_next(bytes);
      EXPECT_EQ(found.batch.samples, expected.samples);
      const at::Tensor host =
          at::from_blob(const_cast<float*>(expected.images.data()),
                        {expected.size, expected.channels, expected.height, expected.width});
      EXPECT_LE((found.images.cpu() - host).abs().max().item<float>(), 1e-6F);
      input.give_back(bytes, std::move(found));
    }
  }
}

// Batches large enough that a copy takes longer than its launch; the memory of each is used again and again.
TEST(CudaInput, CopiesAheadMixUpNoBatch) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device device = testing::use_gpu(0);
  const auto source = data::open_source("fake:512", "train", {64, 3, 7});
  data::TransformOptions transform;
  transform.image_size = 160;
  data::LoaderOptions options;
  options.batch = 128;
  options.workers = 2;
  options.prefetch = 2;
  data::TrainLoader numbers(*source, transform, options, 0);
  deliver_for(device, &options);
  data::TrainLoader bytes(*source, transform, options, 0);
  DeviceInput input(transform, device);
  at::Tensor work = at::rand({2048, 2048}, device);
  for (int step = 0; step < 12; ++step) {
    const data::Batch expected = numbers.next();
    DeviceInput::Input found = input.next(bytes);
    for (int i = 0; i < 8; ++i) work = work.mm(work).div_(2048);  // the device is behind
    const at::Tensor images = found.images + 0;
    input.begin_next(bytes);
    input.give_back(bytes, std::move(found));
    const at::Tensor host =
        at::from_blob(const_cast<float*>(expected.images.data()),
                      {expected.size, expected.channels, expected.height, expected.width});
    EXPECT_LE((images.cpu() - host).abs().max().item<float>(), 1e-6F) << "step " << step;
  }
}

}  // namespace
}  // namespace tessera::eager
