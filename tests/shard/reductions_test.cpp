// SPDX-License-Identifier: Apache-2.0
// Which reductions are under way at once, over a pretended network whose messages take 0.3 s.
#include "tessera/shard/reductions.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "tessera/base/text.h"
#include "tessera/mesh/mesh.h"

namespace tessera::shard {
namespace {

using Clock = std::chrono::steady_clock;

// A block whose layers are cut has two units. The second must not wait for the first: that would take as long
// as the messages do, at the end of every block. The next block waits, or gradients would pile up.
TEST(Reductions, OnlyThoseOfOneSegmentAreUnderWayAtOnce) {
  const auto mesh = mesh::Mesh::pretend(0, {{"shard", 2}}, {}, {}, {.latency = 0.3});
  BufferPool pool{at::kCPU};
  Reductions reductions({});
  std::vector<std::unique_ptr<Unit>> units;
  for (const size_t segment : {0, 0, 1}) {
    const NamedTensor parameter{"weight", at::zeros({8}).requires_grad_(true)};
    units.push_back(std::make_unique<Unit>(concat("unit", units.size()), std::vector{parameter},
                                           plan::Level::kZero3, Precision{},
                                           UnitGroups{mesh->group("shard"), mesh->group("")}, pool));
    units.back()->set_values({at::ones({8})}, std::nullopt);
    units.back()->begin_gradient(/*keep=*/false, 1);
    units.back()->finish_gather();
    reductions.watch(*units.back(), segment);
  }
  reductions.begin(/*last=*/true);
  const auto start = Clock::now();
  const auto backward_of = [&](size_t unit) { units[unit]->parameters()[0].second.sum().backward(); };
  backward_of(0);
  backward_of(1);
  EXPECT_TRUE(units[0]->reducing() && units[1]->reducing());
  EXPECT_LT(Clock::now() - start, std::chrono::milliseconds(270)) << "nothing to wait for";
  backward_of(2);
  EXPECT_FALSE(units[0]->reducing() || units[1]->reducing());
  EXPECT_TRUE(units[2]->reducing());
  EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(299));
  reductions.finish();
  EXPECT_FALSE(units[2]->reducing());
}

}  // namespace
}  // namespace tessera::shard
