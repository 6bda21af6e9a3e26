// Batches of bytes that become numbers in one pass, against the host's own numbers.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/data/open_source.h"
#include "tessera/train/fused_pictures.h"
#include "tests/cuda_kernels/table.h"
#include "tests/data/picture_cases.h"

namespace tessera::train {
namespace {

TEST(Pictures, AreTheHostsBitsForEverySetting) {
  const cuda::UsingKernels kernels;
  for (const data::PictureCase& setting : data::picture_cases()) {
    SCOPED_TRACE(setting.name);
    const auto source = data::open_source("fake:50", "train", {20, setting.transform.channels, 7});
    const Normalisation normalisation = Normalisation::of(setting.transform);
    for (int64_t rank = 0; rank < setting.loader.world; ++rank) {
      data::LoaderOptions options = setting.loader;
      options.rank = rank;
      data::TrainLoader numbers(*source, setting.transform, options, 5);
      options.as_bytes = true;
      data::TrainLoader bytes(*source, setting.transform, options, 5);
      for (int64_t step = 0; step < 3 * options.accumulation; ++step) {
        const data::Batch expected = numbers.next(), batch = bytes.next();
        if (expected.size == 0) continue;
        const at::Tensor host =
            at::from_blob(const_cast<float*>(expected.images.data()),
                          {expected.size, expected.channels, expected.height, expected.width}, at::kFloat);
        const at::Tensor found = images_of(batch, normalisation, at::kCPU);
        EXPECT_TRUE(at::equal(found, host)) << (found - host).abs().max().item<float>();
      }
    }
  }
}

TEST(Pictures, FaultsAreFoundOut) {
  EXPECT_EQ(fault_of_pictures(cuda::kOnCpu, at::kCPU), "");
  EXPECT_EQ(ops::device_kernels(at::ones({1})), nullptr);
  ops::DeviceKernels faulty = cuda::kOnCpu;
  faulty.pictures = [](const ops::Pictures& pass, void* stream) {
    ops::Pictures other = pass;
    other.mixes = nullptr;
    cuda::pictures(other, stream);
  };
  EXPECT_NE(fault_of_pictures(faulty, at::kCPU).find("images that differ by"), std::string::npos);
}

}  // namespace
}  // namespace tessera::train
