// SPDX-License-Identifier: Apache-2.0
// Batches of bytes that become numbers in one pass, against the host's own numbers.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/train/fused_pictures.h"
#include "tests/cuda_kernels/table.h"
#include "tests/train/picture_batches.h"

namespace tessera::train {
namespace {

TEST(Pictures, AreTheHostsBitsForEverySetting) {
  const cuda::UsingKernels kernels;
  over_picture_batches(
      [](const data::Batch& expected, const data::Batch& batch, const Normalisation& normalisation) {
        if (expected.size == 0) return;
        const at::Tensor found = images_of(batch, normalisation, at::kCPU), host = host_images(expected);
        EXPECT_TRUE(at::equal(found, host)) << (found - host).abs().max().item<float>();
      });
}

TEST(Pictures, FaultyKernelIsRemoved) {
  ops::DeviceKernels right = cuda::kOnCpu;
  EXPECT_EQ(remove_faulty_pictures(right, at::kCPU), std::vector<std::string>());
  EXPECT_NE(right.pictures, nullptr);
  EXPECT_EQ(ops::device_kernels(at::ones({1})), nullptr);
  ops::DeviceKernels faulty = cuda::kOnCpu;
  faulty.pictures = [](const ops::Pictures& pass, void* stream) {
    ops::Pictures other = pass;
    other.mixes = nullptr;
    cuda::pictures(other, stream);
  };
  EXPECT_TRUE(remove_faulty_pictures(faulty, at::kCPU)
                  .at(0)
                  .starts_with("kernel 'pictures' differs from LibTorch: images off by "));
  EXPECT_EQ(faulty.pictures, nullptr);
}

}  // namespace
}  // namespace tessera::train
