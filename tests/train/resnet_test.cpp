// SPDX-License-Identifier: Apache-2.0
// A ResNet through the trainer: statistics are saved, loaded, averaged and left alone by recompute; with
// statistics over all ranks the numbers are those of one rank.
#include <limits>

#include "small_run.h"
#include "tessera/base/file.h"
#include "tessera/loop/evaluation.h"

namespace tessera::train {
namespace {

struct Trained {
  Curve curve;
  Parameters buffers;  // of rank 0, after the save
};

using Sets = std::vector<std::string>;

/// Steps `from` to `to`; from > 0: of a checkpoint in the folder. Saved at the end.
Trained train_steps(int64_t world, const Sets& sets, int64_t from, int64_t to,
                    const std::filesystem::path& folder) {
  at::set_num_threads(1);
  Trained outcome;
  testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = resnet_recipe(sets);
    const auto state = assemble(recipe, make_plan(recipe, world), mesh, true);
    if (from > 0) train::load_state(*state, *checkpoint::find(folder, "latest"));
    Curve curve;
    train_until(*state, mesh, to, curve);
    train::save_state(*state, mesh, folder, false);
    if (mesh.rank() != 0) return;
    outcome.curve = curve;
    for (const auto& [name, buffer] : state->sharded->buffers()) outcome.buffers[name] = buffer.clone();
  });
  return outcome;
}

Trained train_resnet(int64_t world, const Sets& sets, int64_t steps = 4) {
  const TemporaryFolder folder("tessera-resnet");
  return train_steps(world, sets, 0, steps, folder.path());
}

void expect_close_buffers(const Parameters& a, const Parameters& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    const double error = (tensor - b.at(name)).abs().max().item<double>();
    EXPECT_LE(error, tolerance * (1 + tensor.abs().max().item<double>())) << name;
  }
}

TEST(ResNetLayouts, StatisticsOverAllRanksAreThoseOfOneRank) {
  const Sets sync = {"model.batch_norm_sync=true"};
  const Trained expected = train_resnet(1, sync);
  for (const auto& [world, more] : std::vector<std::pair<int64_t, Sets>>{{2, {}},
                                                                         {3, {}},
                                                                         {2, {"shard.level=zero1"}},
                                                                         {2, {"shard.level=replicate"}},
                                                                         {2, {"shard.recompute=true"}}}) {
    SCOPED_TRACE(concat(world, " ranks ", more.empty() ? "" : more[0]));
    Sets sets = sync;
    sets.insert(sets.end(), more.begin(), more.end());
    const Trained found = train_resnet(world, sets);
    EXPECT_NEAR(found.curve.losses[0], expected.curve.losses[0], 1e-6 * expected.curve.losses[0]);
    expect_close(found.curve, expected.curve, 5e-5);
    expect_close_buffers(found.buffers, expected.buffers, 5e-4);
  }
}

// Ranks with unequal numbers of images, and a rank without any.
TEST(ResNetLayouts, StatisticsOverRanksWithUnequalSharesAreThoseOfOneRank) {
  const Sets sets = {"model.batch_norm_sync=true", "train.batch=3"};
  const Trained expected = train_resnet(1, sets);
  for (const int64_t world : {2, 4}) {
    SCOPED_TRACE(concat(world, " ranks"));
    const Trained found = train_resnet(world, sets);
    EXPECT_NEAR(found.curve.losses[0], expected.curve.losses[0], 1e-6 * expected.curve.losses[0]);
    expect_close(found.curve, expected.curve, 5e-5);
    expect_close_buffers(found.buffers, expected.buffers, 5e-4);
  }
}

// Each rank's own samples count: other numbers than one rank's, and the mean of the ranks' statistics is
// saved.
TEST(ResNetLayouts, StatisticsOfEachRankDifferFromOneRanks) {
  const Trained one = train_resnet(1, {}), two = train_resnet(2, {});
  EXPECT_NE(one.curve.losses, two.curve.losses);
  EXPECT_NEAR(one.curve.losses[0], two.curve.losses[0], 0.5 * one.curve.losses[0]);
  EXPECT_EQ(two.buffers.at("bn1.num_batches_tracked").item<int64_t>(), 4);
}

TEST(ResNetLayouts, InitialWeightsAreBitwiseEqual) {
  const Trained expected = train_resnet(1, {}, 0);
  for (const int64_t world : {2, 3}) {
    expect_equal(expected.curve.parameters, train_resnet(world, {}, 0).curve.parameters);
  }
}

// A second run of a block neither counts its batch again nor moves the statistics.
TEST(ResNetLayouts, RecomputeIsBitwise) {
  for (const char* sync : {"false", "true"}) {
    const Sets sets = {concat("model.batch_norm_sync=", sync)};
    Sets again = sets;
    again.emplace_back("shard.recompute=true");
    const Trained plain = train_resnet(2, sets), recomputed = train_resnet(2, again);
    EXPECT_EQ(plain.curve.losses, recomputed.curve.losses);
    EXPECT_EQ(plain.curve.norms, recomputed.curve.norms);
    expect_equal(plain.curve.parameters, recomputed.curve.parameters);
    expect_equal(plain.buffers, recomputed.buffers);
    EXPECT_EQ(recomputed.buffers.at("layer2.0.bn2.num_batches_tracked").item<int64_t>(), 4);
  }
}

TEST(ResNetLayouts, ARankWithoutSamplesLeavesNumbersAndStatistics) {
  // An epoch of 96 is four steps of 21 and one of 12: on 3 ranks 7, 5 and none.
  const Sets keep = {"model.batch_norm_sync=true", "data.remainder=keep", "train.batch=21"};
  const Trained expected = train_resnet(1, keep, 5), found = train_resnet(3, keep, 5);
  expect_close(found.curve, expected.curve, 1e-4);
  expect_close_buffers(found.buffers, expected.buffers, 1e-3);
}

TEST(ResNetResume, IsBitwiseOnTheSameRanks) {
  for (const char* sync : {"false", "true"}) {
    SCOPED_TRACE(sync);
    const Sets sets = {concat("model.batch_norm_sync=", sync)};
    const TemporaryFolder folder("tessera-resnet");
    const Trained straight = train_resnet(2, sets, 6);
    Trained first = train_steps(2, sets, 0, 3, folder.path());
    const Trained second = train_steps(2, sets, 3, 6, folder.path());
    auto& losses = first.curve.losses;
    losses.insert(losses.end(), second.curve.losses.begin(), second.curve.losses.end());
    EXPECT_EQ(straight.curve.losses, losses);
    expect_equal(straight.curve.parameters, second.curve.parameters);
    // Averaging in the middle moves a rank's own statistics: their mean stays, but for rounding.
    expect_close_buffers(second.buffers, straight.buffers, 1e-6);
  }
}

TEST(ResNetResume, OnOtherRanksTheStatisticsAreTheSame) {
  const TemporaryFolder folder("tessera-resnet");
  const Trained saved = train_steps(2, {}, 0, 3, folder.path());
  for (const int64_t world : {1, 3}) {
    testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
      const recipe::Recipe recipe = resnet_recipe({});
      const auto state = assemble(recipe, make_plan(recipe, world), mesh, false);
      train::load_state(*state, *checkpoint::find(folder.path(), "latest"));
      Parameters found;
      for (const auto& [name, buffer] : state->sharded->buffers()) found[name] = buffer;
      expect_equal(saved.buffers, found);
    });
  }
  EXPECT_EQ(saved.buffers.at("bn1.num_batches_tracked").item<int64_t>(), 3);
}

// A batch that is not used has left no trace in the running statistics either.
TEST(ResNetGuard, ASkippedStepLeavesTheStatistics) {
  at::set_num_threads(1);
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = resnet_recipe({"guard.skip_steps=1"});
    const auto state = assemble(recipe, make_plan(recipe, 2), mesh, true);
    Curve curve;
    train_until(*state, mesh, 1, curve);
    Parameters before;
    for (const auto& [name, buffer] : state->sharded->buffers()) before[name] = buffer.clone();
    at::Tensor master = state->sharded->units().front()->shards().front().master;
    master.fill_(std::numeric_limits<float>::infinity());
    state->sharded->parameters_changed();
    train_until(*state, mesh, 2, curve);
    EXPECT_EQ(state->guard.skipped(), 1);
    for (const auto& [name, buffer] : state->sharded->buffers())
      EXPECT_TRUE(buffer.equal(before.at(name))) << name;
  });
}

TEST(ResNetEvaluation, IsTheSameOnAnyRanks) {
  const TemporaryFolder folder("tessera-resnet");
  train_steps(2, {}, 0, 3, folder.path());
  std::vector<double> losses;
  for (const int64_t world : {1, 2, 3}) {
    testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
      const recipe::Recipe recipe = resnet_recipe({"data.source=fake:37"});
      const auto state = assemble(recipe, make_plan(recipe, world), mesh, false);
      train::load_state(*state, *checkpoint::find(folder.path(), "latest"));
      const auto source = data::open_source(recipe.data.source, "val", source_options(recipe));
      Log log(false);
      EvaluateOptions options;
      options.batch = 4;
      const Evaluation result =
          train::evaluate(*state, *source, loader_options(recipe, launch::Ranks{}, 1, log), options, mesh);
      EXPECT_EQ(result.metrics.samples, source->size());
      if (mesh.rank() == 0) losses.push_back(result.metrics.loss);
    });
  }
  for (const double loss : losses) EXPECT_NEAR(loss, losses[0], 1e-6);
}

TEST(ResNetResume, AViTsCheckpointIsRefused) {
  const TemporaryFolder folder("tessera-resnet");
  train_steps(1, {}, 0, 1, folder.path());
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe();
    const auto state = assemble(recipe, make_plan(recipe, 1), mesh, false);
    try {
      train::load_state(*state, *checkpoint::find(folder.path(), "latest"));
      FAIL();
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(" is only in the checkpoint"), std::string::npos)
          << error.what();
    }
  });
}

}  // namespace
}  // namespace tessera::train
