// SPDX-License-Identifier: Apache-2.0
// An unmodified module under every setting against itself without sharding; equality_table_test.cpp has
// levels.
#include "tessera/shard/fully_shard.h"

#include <gtest/gtest.h>

#include "foreign_training.h"

namespace tessera {
namespace {

using shard::FullyShardOptions;
using shard::Level;
using shard::ShardedModule;
using testing::every_child;
using testing::expect_close;
using testing::ForeignNet;
using testing::Result;
using testing::sharded;
using testing::unsharded;

FullyShardOptions all_at(Level level) { return every_child({.level = level}); }

TEST(FullyShard, AnyPrefetchLimitAndRootEqualTheUnshardedModule) {
  const Result expected = unsharded();
  for (const bool root_stays : {true, false}) {
    for (const int64_t prefetch : {0, 1, 3}) {
      for (const int64_t in_flight : {0, 1, 4}) {
        FullyShardOptions options = all_at(Level::kZero3);
        options.root_stays_gathered = root_stays;
        options.prefetch = prefetch;
        options.units_in_flight = in_flight;
        testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
          SCOPED_TRACE(concat("root stays ", root_stays, " prefetch ", prefetch, " in flight ", in_flight));
          expect_close(sharded(mesh, options, {.accumulation = 2}), expected, 1e-6);
        });
      }
    }
  }
}

TEST(FullyShard, HybridShardsInsideAndReplicatesAcross) {
  const Result expected = unsharded();
  for (const Level level : {Level::kZero1, Level::kZero2, Level::kZero3}) {
    testing::run_ranks({{"dp", 2}, {"shard", 2}}, [&](mesh::Mesh& mesh) {
      expect_close(sharded(mesh, all_at(level), {.accumulation = 3}), expected, 1e-6);
    });
  }
}

TEST(FullyShard, ReplicatedUnitsAreReducedInBuckets) {
  const Result expected = unsharded();
  FullyShardOptions options;
  options.policy = shard::no_units();
  options.root.level = Level::kReplicate;
  options.bucket_bytes = 300;  // less than some parameters
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    expect_close(sharded(mesh, options, {.accumulation = 2}), expected, 1e-6);
    EXPECT_GT(mesh.world().traffic().at("reduce_scatter").calls, 5);
  });
}

TEST(FullyShard, Float64AndBf16Masters) {
  const Result expected = unsharded();
  FullyShardOptions options = all_at(Level::kZero3);
  options.precision.master = at::kDouble;
  testing::run_ranks({{"shard", 2}},
                     [&](mesh::Mesh& mesh) { expect_close(sharded(mesh, options), expected, 1e-6); });
  options.precision.master = at::kBFloat16;
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    const Result result = sharded(mesh, options);
    ASSERT_EQ(result.values.size(), expected.values.size());
    for (size_t i = 0; i < expected.values.size(); ++i) {
      EXPECT_NEAR(result.values[i], expected.values[i], 5e-2 * std::abs(expected.values[i])) << i;
    }
  });
  for (const at::ScalarType master : {at::kDouble, at::kFloat, at::kBFloat16}) {
    options.precision.master = master;
    testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
      ShardedModule sharded(std::make_shared<ForeignNet>(), mesh, options);
      for (const at::Tensor& shard : sharded.parameters()) EXPECT_EQ(shard.scalar_type(), master);
    });
  }
}

}  // namespace
}  // namespace tessera
