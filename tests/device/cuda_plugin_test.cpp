// SPDX-License-Identifier: Apache-2.0
// The door to the CUDA plug-in where there is none, and the version of NCCL that a process has loaded.
#include "tessera/device/cuda_plugin.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tessera/device/in_use.h"

namespace tessera::device {
namespace {

TEST(CudaPlugin, IsMissingWithAReason) {
  const OpenedCuda none = open_cuda("/nowhere/libtessera_cuda.so");
  EXPECT_EQ(none.plugin, nullptr);
  EXPECT_TRUE(none.missing.starts_with("found none that loads: /nowhere/libtessera_cuda.so: "))
      << none.missing;
  const OpenedCuda other =
      open_cuda(std::filesystem::path(TESSERA_BINARY_DIR) / "lib" / "libtessera_core.so");
  EXPECT_EQ(other.plugin, nullptr);
  EXPECT_TRUE(other.missing.ends_with("lib/libtessera_core.so, which is another library")) << other.missing;
  EXPECT_EQ(cuda_in_use().plugin, nullptr);
}

TEST(CudaPlugin, OrdersNcclsLaunchesUnlessTheUserDecides) {
  constexpr const char* kVariable = "NCCL_LAUNCH_ORDER_IMPLICIT";
  ::unsetenv(kVariable);
  open_cuda("/nowhere/libtessera_cuda.so");
  EXPECT_STREQ(::getenv(kVariable), "1");
  ::setenv(kVariable, "0", 1);
  open_cuda("/nowhere/libtessera_cuda.so");
  EXPECT_STREQ(::getenv(kVariable), "0");
  ::unsetenv(kVariable);
}

TEST(Nccl, VersionIsThatOfTheLoadedLibrary) {
  EXPECT_EQ(nccl_version_text(22809), "2.28.9");
  EXPECT_EQ(nccl_version_text(21805), "2.18.5");
  EXPECT_EQ(nccl_version_text(2708), "2.7.8");
  EXPECT_EQ(nccl_version(), "none");  // looking loads nothing
  void* library = ::dlopen(TESSERA_STAND_IN_NCCL, RTLD_NOW);
  ASSERT_NE(library, nullptr) << ::dlerror();
  EXPECT_EQ(nccl_version(), "2.28.9");
  ::dlclose(library);
  EXPECT_EQ(nccl_version(), "none");
}

}  // namespace
}  // namespace tessera::device
