// SPDX-License-Identifier: Apache-2.0
// A ResNet through the trainer: statistics are saved, loaded, averaged and left alone by recompute; with
// statistics over all ranks the numbers are those of one rank. In pipelines each stage has those of its
// layers.
#include <limits>

#include "small_run.h"
#include "tessera/base/file.h"
#include "tessera/loop/evaluation.h"

namespace tessera::train {
namespace {

struct Trained {
  Curve curve;
  Parameters buffers;  // of all stages, after the save
};

/// Adds the buffers of this rank, which are those of every rank of its stage. Collective.
void add_buffers_of_all(const TrainState& state, mesh::Mesh& mesh, Parameters& whole) {
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    mesh.world().barrier("the buffers of a rank");
    if (rank != mesh.rank()) continue;
    for (const auto& [name, buffer] : state.sharded->buffers()) {
      const auto [known, is_new] = whole.emplace(name, buffer.clone());
      EXPECT_EQ(is_new, rank % state.plan.stage_ranks() == 0) << name << " of rank " << rank;
      EXPECT_TRUE(known->second.equal(buffer)) << name << " of rank " << rank;
    }
  }
  mesh.world().barrier("the buffers of all ranks");
}

/// Steps `from` to `to`; from > 0: of a checkpoint in the folder. Saved at the end.
Trained train_steps(int64_t world, const Sets& sets, int64_t from, int64_t to,
                    const std::filesystem::path& folder) {
  at::set_num_threads(1);
  Trained outcome;
  const recipe::Recipe recipe = resnet_recipe(sets);
  run_plan_ranks(recipe, world, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
    const auto state = assemble(recipe, plan, mesh, true);
    if (from > 0) train::load_state(*state, *checkpoint::find(folder, "latest"));
    Curve curve;
    train_until(*state, mesh, to, curve);
    train::save_state(*state, mesh, folder, false);
    add_buffers_of_all(*state, mesh, outcome.buffers);
    if (mesh.rank() == 0) outcome.curve = curve;
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

/// The buffers that ranks of another layout load.
Parameters loaded_buffers(int64_t world, const Sets& sets, const std::filesystem::path& folder) {
  Parameters found;
  const recipe::Recipe recipe = resnet_recipe(sets);
  run_plan_ranks(recipe, world, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
    const auto state = assemble(recipe, plan, mesh, false);
    train::load_state(*state, *checkpoint::find(folder, "latest"));
    add_buffers_of_all(*state, mesh, found);
  });
  return found;
}

TEST(ResNetResume, OnOtherRanksTheStatisticsAreTheSame) {
  const TemporaryFolder folder("tessera-resnet");
  const Trained saved = train_steps(2, {}, 0, 3, folder.path());
  for (const int64_t world : {1, 3}) expect_equal(saved.buffers, loaded_buffers(world, {}, folder.path()));
  EXPECT_EQ(saved.buffers.at("bn1.num_batches_tracked").item<int64_t>(), 3);
}

/// Stages of a ResNet with units stem, layer1.0, layer2.0 and head.
struct Stages {
  const char* name;
  int64_t world;
  Sets sets;
};

const std::vector<Stages> kStagesOfTwoRanks = {
    {"1f1b", 4, {"parallel.pipeline=2", "parallel.micro_batches=2"}},
    {"gpipe zero1",
     4,
     {"parallel.pipeline=2", "parallel.micro_batches=2", "parallel.schedule=gpipe", "shard.level=zero1"}},
    {"1f1b recompute",
     4,
     {"parallel.pipeline=2", "parallel.micro_batches=2", "parallel.stages=[2, 0]", "shard.recompute=true"}},
    {"interleaved",
     4,
     {"parallel.pipeline=2", "parallel.micro_batches=2", "parallel.schedule=interleaved",
      "parallel.virtual_stages=2"}},
};

// A rank takes the statistics of a micro-batch over its own images, or over those of its stage: the same ones
// as on two ranks without stages that accumulate as many micro-batches.
TEST(ResNetPipeline, StagesOfTwoRanksTrainAsTwoRanksThatAccumulate) {
  for (const char* sync : {"model.batch_norm_sync=false", "model.batch_norm_sync=true"}) {
    const Trained expected = train_resnet(2, {sync, "train.accumulation=2"});
    EXPECT_EQ(expected.buffers.at("layer2.0.bn2.num_batches_tracked").item<int64_t>(), 8);
    EXPECT_NE(train_resnet(2, {sync}).curve.losses, expected.curve.losses) << "the micro-batch counts";
    for (const Stages& stages : kStagesOfTwoRanks) {
      SCOPED_TRACE(concat(stages.name, ", ", sync));
      Sets sets = stages.sets;
      sets.emplace_back(sync);
      const Trained found = train_resnet(stages.world, sets);
      EXPECT_NEAR(found.curve.losses[0], expected.curve.losses[0], 1e-6 * expected.curve.losses[0]);
      expect_close(found.curve, expected.curve, 1e-6);
      expect_close_buffers(found.buffers, expected.buffers, 1e-6);
    }
  }
}

TEST(ResNetPipeline, ResumesBitwise) {
  for (const Stages& stages : kStagesOfTwoRanks) {
    SCOPED_TRACE(stages.name);
    const TemporaryFolder folder("tessera-resnet");
    const Trained straight = train_resnet(stages.world, stages.sets, 6),
                  first = train_steps(stages.world, stages.sets, 0, 3, folder.path());
    // Without stages, and with other stages.
    for (const Stages& other : {Stages{"", 1, {}}, Stages{"", 2, {}},
                                Stages{"", 3, {"parallel.pipeline=3", "parallel.micro_batches=1"}}})
      expect_equal(loaded_buffers(other.world, other.sets, folder.path()), first.buffers);
    const Trained second = train_steps(stages.world, stages.sets, 3, 6, folder.path());
    EXPECT_EQ(second.curve.losses,
              std::vector<double>(straight.curve.losses.begin() + 3, straight.curve.losses.end()));
    expect_equal(second.curve.parameters, straight.curve.parameters);
    expect_close_buffers(second.buffers, straight.buffers, 1e-6);
  }
}

// A batch that is not used has left no trace in the running statistics either.
TEST(ResNetGuard, ASkippedStepLeavesTheStatistics) {
  at::set_num_threads(1);
  for (const Sets& sets : {Sets{}, Sets{"parallel.pipeline=2", "parallel.micro_batches=2"}}) {
    const recipe::Recipe recipe = resnet_recipe(sets.empty() ? Sets{"guard.skip_steps=1"}
                                                             : Sets{"guard.skip_steps=1", sets[0], sets[1]});
    run_plan_ranks(recipe, 2, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
      const auto state = assemble(recipe, plan, mesh, true);
      Curve curve;
      train_until(*state, mesh, 1, curve);
      Parameters before;
      for (const auto& [name, buffer] : state->sharded->buffers()) before[name] = buffer.clone();
      at::Tensor master = state->sharded->units().front()->shards().front().master;
      master.fill_(std::numeric_limits<float>::infinity());
      state->sharded->parameters_changed();
      train_until(*state, mesh, 2, curve);
      EXPECT_EQ(state->guard.skipped(), 1);
      EXPECT_FALSE(before.empty());
      for (const auto& [name, buffer] : state->sharded->buffers())
        EXPECT_TRUE(buffer.equal(before.at(name))) << name;
    });
  }
}

TEST(ResNetEvaluation, IsTheSameOnAnyRanks) {
  const TemporaryFolder folder("tessera-resnet");
  train_steps(2, {}, 0, 3, folder.path());
  std::vector<double> losses;
  for (const auto& [world, stages] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {2, 1}, {3, 1}, {2, 2}, {4, 2}, {3, 3}}) {
    SCOPED_TRACE(concat(world, " ranks, ", stages, " stages"));
    const recipe::Recipe recipe =
        resnet_recipe({"data.source=fake:37", concat("parallel.pipeline=", stages)});
    run_plan_ranks(recipe, world, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
      const auto state = assemble(recipe, plan, mesh, false);
      train::load_state(*state, *checkpoint::find(folder.path(), "latest"));
      const Evaluation result = evaluate_validation(*state, mesh, {.batch = 4});
      EXPECT_EQ(result.metrics.samples, 37);
      if (mesh.rank() == 0) losses.push_back(result.metrics.loss);
    });
  }
  EXPECT_EQ(losses.size(), 6U);
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
