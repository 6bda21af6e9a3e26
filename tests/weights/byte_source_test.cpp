// SPDX-License-Identifier: Apache-2.0
// Files of weights are read through the FileSystem that open_file() is given.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/memory_files.h"
#include "tests/weights/foreign.h"

namespace tessera::weights {
namespace {
using namespace testing;

class WeightsInMemory : public ::testing::TestWithParam<const char*> {};

TEST_P(WeightsInMemory, AreReadThroughTheInterface) {
  MemoryFiles files;
  const auto copy = files.add(kFixtures / GetParam());
  const OpenOptions options{
      .from = {}, .ema = true, .heads = std::string(GetParam()).ends_with(".npz") ? 0 : 2};
  const Model expected = open_fixture(GetParam());
  const Model found = open_model(open_file(copy, true, files), options);
  EXPECT_EQ(found.description.config, expected.description.config);
  EXPECT_EQ(found.description.classes, expected.description.classes);
  EXPECT_EQ(read_all(*found.tensors), read_all(*expected.tensors));
  EXPECT_GT(files.opened(), 0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, WeightsInMemory,
                         ::testing::Values("timm.safetensors", "timm_hub", "hf", "hf_sharded", "google.npz",
                                           "torchvision.pth"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

}  // namespace
}  // namespace tessera::weights
