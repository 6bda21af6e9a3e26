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
