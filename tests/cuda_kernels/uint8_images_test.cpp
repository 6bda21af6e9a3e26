// SPDX-License-Identifier: Apache-2.0
// Batches of bytes that become numbers in one pass, against the host's own numbers.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/eager/fused_uint8_images.h"
#include "tests/cuda_kernels/table.h"
#include "tests/train/uint8_image_batches.h"

namespace tessera::train {
namespace {

TEST(Uint8Images, AreTheHostsBitsForEverySetting) {
  const cuda::UsingKernels kernels;
  over_picture_batches(
      [](const data::Batch& expected, const data::Batch& batch, const Normalisation& normalisation) {
        if (expected.size == 0) return;
        const at::Tensor found = images_of(batch, normalisation, at::kCPU), host = host_images(expected);
        EXPECT_TRUE(at::equal(found, host)) << (found - host).abs().max().item<float>();
      });
}

TEST(Uint8Images, FaultyKernelIsRemoved) {
  device::DeviceKernels right = cuda::kOnCpu;
  EXPECT_EQ(remove_faulty_uint8_images(right, at::kCPU), std::vector<std::string>());
  EXPECT_NE(right.uint8_images, nullptr);
  EXPECT_EQ(device::kernels_for(at::ones({1})), nullptr);
  device::DeviceKernels faulty = cuda::kOnCpu;
  faulty.uint8_images = [](const device::Uint8Images& pass, void* stream) {
    device::Uint8Images other = pass;
    other.mixes = nullptr;
    cuda::uint8_images(other, stream);
  };
  EXPECT_TRUE(remove_faulty_uint8_images(faulty, at::kCPU)
                  .at(0)
                  .starts_with("kernel 'uint8_images' differs from LibTorch: images off by "));
  EXPECT_EQ(faulty.uint8_images, nullptr);
}

}  // namespace
}  // namespace tessera::train
