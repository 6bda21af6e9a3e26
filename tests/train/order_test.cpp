// SPDX-License-Identifier: Apache-2.0
// What the data's order means for training and evaluation: short steps, copies and mixes at any layout,
// broken samples judged by all ranks, ranks without samples.
#include <mutex>
#include <set>
#include <utility>

#include "small_run.h"
#include "tessera/loop/evaluation.h"

namespace tessera::train {
namespace {

// Steps of 48 and of 5 samples: of the short one, on 4 ranks x 4 micro-batches, all are in the first
// micro-batch, two on rank 0 and one on each other rank. Gradients and loss are the mean over the 5.
TEST(Order, AShortLastStepIsTheMeanOverItsSamples) {
  const std::vector<std::string> short_steps = {"data.source=fake:53", "data.remainder=keep"};
  const Curve expected = train_layout(1, short_steps, 4);
  for (const auto& [world, accumulation] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 4}, {2, 1}, {2, 2}, {3, 1}, {3, 4}, {4, 1}, {4, 4}}) {
    SCOPED_TRACE(concat(world, " ranks x ", accumulation));
    for (const char* level : {"zero3", "replicate"}) {
      auto sets = short_steps;
      sets.push_back(concat("train.accumulation=", accumulation));
      sets.push_back(concat("shard.level=", level));
      expect_close(train_layout(world, sets, 4), expected, 1e-5);
      if (world == 1) continue;
      sets.push_back(concat("parallel.tensor=", world == 4 ? 2 : world));
      expect_close(train_layout(world, sets, 4), expected, 1e-5);
    }
  }
}

// The 5 samples of the short step alone give the step's loss and gradient: nothing else counts in the mean.
TEST(Order, AShortStepIsABatchOfItsOwn) {
  at::set_num_threads(1);
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    const auto first_step = [&](int64_t samples, const std::vector<std::string>& sets) {
      auto all = sets;
      all.push_back(concat("data.source=fake:", samples));
      const recipe::Recipe recipe = make_recipe(all);
      const auto state = assemble(recipe, make_plan(recipe, 1), mesh, true);
      Curve curve;
      train_until(*state, mesh, 1, curve);
      return curve;
    };
    const Curve kept = first_step(5, {"data.remainder=keep", "data.order=sequential"});
    const Curve alone = first_step(5, {"train.batch=5", "data.order=sequential"});
    EXPECT_EQ(kept.losses, alone.losses);
    EXPECT_EQ(kept.norms, alone.norms);
    for (const auto& [name, tensor] : alone.parameters) EXPECT_TRUE(tensor.equal(kept.parameters.at(name)));
  });
}

// Copies of a sample, a mix of sources and a carried remainder belong to the global batch: no rank matters.
TEST(Order, RepeatsAndMixesAreThoseOfTheGlobalBatch) {
  const std::vector<std::string> sets = {"data.source=fake:53", "data.repeats=3", "data.remainder=carry",
                                         "data.mix=[\"fake:20\"]", "data.mix_weights=[1, 2]"};
  const Curve expected = train_layout(1, sets, 4);
  for (const int64_t world : {2, 3}) expect_close(train_layout(world, sets, 4), expected, 1e-5);
  auto tensor = sets;
  tensor.emplace_back("parallel.tensor=2");
  expect_close(train_layout(4, tensor, 4), expected, 1e-5);
}

/// Synthetic images of which some cannot be read.
class PartlyBroken : public data::Source {
 public:
  PartlyBroken(const recipe::Recipe& recipe, std::set<int64_t> broken)
      : whole_(data::open_source(recipe.data.source, "train", source_options(recipe))),
        broken_(std::move(broken)) {}
  int64_t size() const override { return whole_->size(); }
  int64_t label(int64_t index) const override { return whole_->label(index); }
  data::Stored load(int64_t index) const override {
    if (broken_.contains(index))
      user_error({.where = "test.load", .problem = concat("no image in ", sample_name(index))});
    return whole_->load(index);
  }
  std::string sample_name(int64_t index) const override { return whole_->sample_name(index); }
  const std::vector<std::string>& classes() const override { return whole_->classes(); }

 private:
  std::unique_ptr<data::Source> whole_;
  std::set<int64_t> broken_;
};

// 3 of 96 samples: each rank of three finds one, and the limit of 2 is that of all. Every rank says the same,
// in the same step, with the parameters as they were.
TEST(BrokenSamples, TooManyOverAllRanksStopAllRanks) {
  std::mutex mutex;
  std::vector<std::pair<int64_t, std::string>> said;
  testing::run_ranks({{"shard", 3}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe({"data.error_limit=0.021"});
    const auto state = assemble(recipe, make_plan(recipe, 3), mesh, true);
    const PartlyBroken source(recipe, {1, 50, 90});
    Log log(false);
    launch::Ranks ranks;
    ranks.rank = mesh.rank();
    ranks.world = mesh.world_size();
    data::LoaderOptions options = loader_options(recipe, ranks, 1, log);
    const recipe::BatchSizes sizes = recipe::resolve_batch(recipe.train, 3);
    options.batch = sizes.batch;
    data::TrainLoader loader(source, recipe.data.transform, options, 0);
    try {
      for (int step = 0; step < 2; ++step) train::train_step(*state, loader, sizes, 1e-2, {}, mesh);
    } catch (const UserError& error) {
      const std::lock_guard lock(mutex);
      said.emplace_back(state->step, error.what());
    }
  });
  ASSERT_EQ(said.size(), 3U);
  EXPECT_EQ(said[0], said[1]);
  EXPECT_EQ(said[0], said[2]);
  EXPECT_TRUE(said[0].second.starts_with(
      "[data.loader] 3 of 96 samples are broken (the last: [test.load] no image in fake-train["))
      << said[0].second;
}

TEST(BrokenSamples, AnEvaluationJudgesThoseOfAllRanks) {
  for (const double limit : {0.02, 0.05}) {
    testing::run_ranks({{"shard", 3}}, [&](mesh::Mesh& mesh) {
      const recipe::Recipe recipe = make_recipe({concat("data.error_limit=", limit)});
      const auto state = assemble(recipe, make_plan(recipe, 3), mesh, false);
      const PartlyBroken source(recipe, {1, 50, 90});
      Log log(false);
      EvaluateOptions options;
      options.batch = 8;
      try {
        EXPECT_EQ(
            train::evaluate(*state, source, loader_options(recipe, {}, 1, log), options, mesh).figures.broken,
            3);
        EXPECT_EQ(limit, 0.05);
      } catch (const UserError& error) {
        EXPECT_EQ(std::string(error.what()),
                  "[data.loader] 3 of 96 samples are broken (named in the ranks' logs): expected at most 2 % "
                  "(data.error_limit); repair or remove the files, or raise data.error_limit");
        EXPECT_EQ(limit, 0.02);
      }
    });
  }
}

// Ranks with unequal numbers of batches, and with no sample at all: none hangs, and every sample counts once.
TEST(Evaluation, RanksWithFewOrNoSamples) {
  for (const int64_t size : {1, 3, 7, 41}) {
    std::vector<double> losses;
    for (const auto& [world, tensor] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {2, 1}, {5, 1}, {2, 2}, {4, 2}}) {
      const recipe::Recipe recipe =
          make_recipe({concat("data.source=fake:", size), concat("parallel.tensor=", tensor)});
      run_plan_ranks(recipe, world, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
        const auto state = assemble(recipe, plan, mesh, false);
        const Evaluation result = evaluate_validation(*state, mesh, {.batch = 4});
        EXPECT_EQ(result.metrics.samples, size);
        if (mesh.rank() == 0) losses.push_back(result.metrics.loss);
      });
    }
    for (const double loss : losses) EXPECT_NEAR(loss, losses[0], 1e-6);
  }
}

}  // namespace
}  // namespace tessera::train
