// SPDX-License-Identifier: Apache-2.0
// The device that a program asks for when it connects. What a GPU then does is in tests/cuda.
#include <gtest/gtest.h>

#include "../error_text.h"
#include "tessera/device/cuda_plugin.h"
#include "tessera/library/run.h"

namespace tessera::library_device {
namespace {

bool has_gpu() {
  const device::OpenedCuda cuda = device::open_cuda();
  return cuda.plugin != nullptr && cuda.plugin->device_count() > 0;
}

TEST(ConnectDevice, IsTheCpuUnlessAGpuIsAskedFor) {
  const auto mesh = library::connect();
  EXPECT_TRUE(library::device().is_cpu());
}

TEST(ConnectDevice, IsTheCpuWhereNoGpuAnswers) {
  if (has_gpu()) GTEST_SKIP() << "needs a host without a GPU";
  const auto mesh = library::connect({.device = library::DeviceKind::kAuto, .share_gpu = true});
  EXPECT_TRUE(library::device().is_cpu());
}

TEST(ConnectDevice, AGpuThatIsNotThereIsRefused) {
  if (has_gpu()) GTEST_SKIP() << "needs a host without a GPU";
  const std::string error = error_text([] { library::connect({.device = library::DeviceKind::kCuda}); });
  EXPECT_EQ(error.find("[library.connect] ConnectOptions::device = kCuda"), 0U) << error;
  EXPECT_NE(error.find("set ConnectOptions::device = kCpu"), std::string::npos) << error;
}

}  // namespace
}  // namespace tessera::library_device
