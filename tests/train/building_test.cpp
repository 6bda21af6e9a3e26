// SPDX-License-Identifier: Apache-2.0
// Models larger than this machine are built as one rank's shards, never whole.
#include <gtest/gtest.h>

#include <iostream>
#include <string>

#include "rooms.h"
#include "tessera/arch/vit.h"
#include "tessera/base/error.h"
#include "tessera/eager/session.h"
#include "tessera/eager/state.h"
#include "tessera/shard/tensor_memory.h"
#include "tests/process_memory.h"

namespace tessera::train {
namespace {

using testing::forget_peak;
using testing::status_bytes;

constexpr int64_t kMiB = int64_t{1} << 20;

struct Large {
  const char* preset;
  int64_t world;
};

class Building : public ::testing::TestWithParam<Large> {};

TEST_P(Building, TakesTheShardsAndAtMost512MiBMore) {
  const auto [preset, world] = GetParam();
  if (shard::tensor_memory().waiting > 0) {
    GTEST_SKIP() << "memory of another test waits to be used again; ctest gives each a process of its own";
  }
  shard::keep_tensor_memory();
  const recipe::Recipe recipe = recipe::parse_recipe(
      "[data]\nsource = \"fake:16\"\n[train]\nbatch_per_rank = 1\nsteps = 1\n", "test", ".",
      {concat("model.preset=\"", preset, "\""), "precision.compute=\"bf16\"", "shard.recompute=true"});
  const auto mesh = mesh::Mesh::pretend(0, {{"shard", world}});
  if (!forget_peak()) GTEST_SKIP() << "the kernel does not forget the peak of this process";
  const int64_t before = status_bytes("VmRSS");
  const auto state = assemble(recipe, make_plan(recipe, world), *mesh, /*with_optimizer=*/true);
  const int64_t peak = status_bytes("VmHWM") - before, held = status_bytes("VmRSS") - before;

  int64_t numbers = 0;
  for (const auto& unit : state->sharded->units()) numbers += unit->shard_numel();
  EXPECT_GE(numbers, arch::parameter_count(recipe.model) / world);
  const int64_t shards = numbers * (4 * 4 + 2);  // master, gradient, two moments; the shard in bf16
  EXPECT_LE(peak, shards + 512 * kMiB);
  EXPECT_GE(held, numbers * (4 + 2));  // the values are there
  std::cout << preset << " over " << world << " ranks: shards " << shards / kMiB << " MiB, peak "
            << peak / kMiB << " MiB\n";
}

INSTANTIATE_TEST_SUITE_P(Ladder, Building,
                         ::testing::Values(Large{"10B/14", 128}, Large{"60B/14", 1024},
                                           Large{"120B/14", 2048}),
                         [](const auto& info) { return concat("over_", info.param.world, "_ranks"); });

}  // namespace
}  // namespace tessera::train
