// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tessera/recipe/choose_device.h"
#include "tessera/recipe/recipe.h"
#include "tests/error_text.h"

namespace tessera::recipe {
namespace {

const FoundGpus kNoPlugin{"found no libtessera_cuda.so in /lib", 0};
const FoundGpus kNoGpu{"", 0};
const FoundGpus kFour{"", 4};

TEST(Device, IsTheRanksOwnGpuWhereThereAreSome) {
  EXPECT_EQ(choose_gpu(DeviceKind::kAuto, kFour, {2, 4}, false), 2);
  EXPECT_EQ(choose_gpu(DeviceKind::kCuda, kFour, {0, 1}, false), 0);
  EXPECT_EQ(choose_gpu(DeviceKind::kCpu, kFour, {2, 4}, false), std::nullopt);
}

TEST(Device, IsTheCpuWhereNothingElseWasAskedForOrFound) {
  for (const FoundGpus& found : {kNoPlugin, kNoGpu}) {
    EXPECT_EQ(choose_gpu(DeviceKind::kAuto, found, {0, 2}, false), std::nullopt);
    EXPECT_EQ(choose_gpu(DeviceKind::kCpu, found, {0, 2}, false), std::nullopt);
  }
}

TEST(Device, ErrorsSayWhatToInstall) {
  const auto error = [](DeviceKind wanted, const FoundGpus& found, int64_t local_world) {
    return error_text([&] { choose_gpu(wanted, found, {0, local_world}, false); });
  };
  EXPECT_EQ(
      error(DeviceKind::kCuda, kNoPlugin, 1),
      "[recipe.device] run.device = \"cuda\" needs the CUDA plug-in, found no libtessera_cuda.so in /lib; "
      "build it with CUDA=1 ./dev build (needs nvcc of the CUDA 13 toolkit), or set run.device = \"cpu\"");
  EXPECT_EQ(
      error(DeviceKind::kCuda, kNoGpu, 1),
      "[recipe.device] run.device = \"cuda\", but no GPU was found: expected a GPU with NVIDIA's driver of "
      "release 580 or later (CUDA 13); check nvidia-smi and CUDA_VISIBLE_DEVICES, or set run.device = "
      "\"cpu\"");
  for (const DeviceKind wanted : {DeviceKind::kAuto, DeviceKind::kCuda}) {
    EXPECT_EQ(
        error(wanted, {"", 1}, 2),
        "[recipe.device] 2 ranks on this host, but only 1 GPU: expected a GPU for each rank; start at most "
        "1 rank on this host, or set run.device = \"cpu\" (for tests: run.share_gpu = true)");
  }
}

TEST(Device, ErrorsNameTheSettingsOfTheCaller) {
  const DeviceSettings settings{.where = "library.connect", .cuda = "a", .cpu = "b", .share = "c"};
  const auto error = [&](const FoundGpus& found, int64_t local_world) {
    return error_text([&] { choose_gpu(DeviceKind::kCuda, found, {0, local_world}, false, settings); });
  };
  EXPECT_EQ(error(kNoPlugin, 1),
            "[library.connect] a needs the CUDA plug-in, found no libtessera_cuda.so in /lib; build it with "
            "CUDA=1 ./dev build (needs nvcc of the CUDA 13 toolkit), or set b");
  EXPECT_EQ(
      error(kNoGpu, 1),
      "[library.connect] a, but no GPU was found: expected a GPU with NVIDIA's driver of release 580 or "
      "later (CUDA 13); check nvidia-smi and CUDA_VISIBLE_DEVICES, or set b");
  EXPECT_EQ(error({"", 1}, 2),
            "[library.connect] 2 ranks on this host, but only 1 GPU: expected a GPU for each rank; start at "
            "most 1 rank on this host, or set b (for tests: c)");
}

TEST(Device, IsSharedWhereAskedFor) {
  EXPECT_EQ(choose_gpu(DeviceKind::kAuto, {"", 2}, {3, 5}, true), 1);
  EXPECT_EQ(choose_gpu(DeviceKind::kCuda, {"", 1}, {1, 2}, true), 0);
  EXPECT_EQ(choose_gpu(DeviceKind::kCuda, kFour, {2, 3}, true), 2);
  EXPECT_EQ(choose_gpu(DeviceKind::kAuto, kNoGpu, {1, 2}, true), std::nullopt);
  EXPECT_TRUE(parse_recipe("", "test", "/", {"train.steps=1", "run.share_gpu=true"}).run.share_gpu);
}

TEST(Device, IsReadFromTheRecipe) {
  EXPECT_EQ(parse_recipe("", "test", "/", {"train.steps=1"}).run.device, DeviceKind::kAuto);
  EXPECT_EQ(parse_recipe("", "test", "/", {"train.steps=1", "run.device=cuda"}).run.device,
            DeviceKind::kCuda);
}

}  // namespace
}  // namespace tessera::recipe
