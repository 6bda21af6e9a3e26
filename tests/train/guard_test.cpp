// SPDX-License-Identifier: Apache-2.0
// Steps with bad numbers: the same decision on every rank, nothing of them stays, and a resumed run decides
// as the uninterrupted one.
#include <atomic>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "small_run.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Multiplies this rank's part of the last tensor of the last stage (the head's), or of another stage, for as
/// long as it lives.
class Damage {
 public:
  Damage(TrainState& state, double factor, std::optional<int64_t> stage) : state_(state) {
    if (plan::stage_of(state.plan, state.rank) != stage.value_or(state.plan.stages - 1)) return;
    const auto& units = state.sharded->units();
    master_ = units.back()->shards().back().master;
    before_ = master_.clone();
    master_.mul_(factor).add_(std::isinf(factor) ? kInfinity : 0.0);
    state.sharded->parameters_changed();
  }
  ~Damage() {
    if (!master_.defined()) return;
    master_.copy_(before_);
    state_.sharded->parameters_changed();
  }

 private:
  TrainState& state_;
  at::Tensor master_, before_;
};

struct Guarded {
  Curve curve;
  int64_t skipped = 0;
  std::string error;  // of any rank; they must all have the same
};

/// Steps from the checkpoint's, or 0, to `until`. In the steps of `bad` the last tensor of the head, or of
/// `stage`, is multiplied by `factor`, on every rank that has a part of it. Saves at the end.
Guarded train_guarded(int64_t world, const Sets& sets, const std::set<int64_t>& bad, int64_t until,
                      const fs::path& folder, double factor = kInfinity,
                      std::optional<int64_t> stage = std::nullopt) {
  at::set_num_threads(1);
  Guarded result;
  std::atomic<int> told = 0;
  const recipe::Recipe recipe = make_recipe(sets);
  run_plan_ranks(recipe, world, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
    const auto state = assemble(recipe, plan, mesh, true);
    if (const auto saved = checkpoint::find(folder, "latest")) train::load_state(*state, *saved);
    Curve curve;
    mesh.world().barrier("loaded");
    try {
      while (state->step < until) {
        std::optional<Damage> damage;
        if (bad.contains(state->step)) damage.emplace(*state, factor, stage);
        train_until(*state, mesh, state->step + 1, curve);
      }
    } catch (const UserError& error) {
      ++told;
      if (mesh.rank() == 0) result.error = error.what();
      return;
    }
    train_until(*state, mesh, until, curve);  // gathers the parameters once more, undamaged
    train::save_state(*state, mesh, folder, false);
    if (mesh.rank() != 0) return;
    result.curve = curve;
    result.skipped = state->guard.skipped();
  });
  EXPECT_TRUE(told == 0 || told == world) << told;
  return result;
}

Guarded train_alone(int64_t world, const Sets& sets, const std::set<int64_t>& bad, int64_t until,
                    double factor = kInfinity, std::optional<int64_t> stage = std::nullopt) {
  const TemporaryFolder folder("tessera-guard");
  return train_guarded(world, sets, bad, until, folder.path(), factor, stage);
}

struct GuardedLayout {
  int64_t world;
  Sets sets;
};

void PrintTo(const GuardedLayout& layout, std::ostream* out) {
  *out << layout.world << " ranks " << join(layout.sets, " ");
}

const Sets kTwoStages = {"parallel.pipeline=2", "parallel.micro_batches=2"},
           kTwoStagesOfTensorGroups = {"parallel.pipeline=2", "parallel.micro_batches=2",
                                       "parallel.tensor=2"};

// In a pipeline the last stage alone has the loss.
TEST(Guard, ASkippedStepChangesNothing) {
  for (const GuardedLayout& layout :
       {GuardedLayout{2, {}}, GuardedLayout{2, {"parallel.tensor=2"}}, GuardedLayout{2, kTwoStages},
        GuardedLayout{4, kTwoStagesOfTensorGroups}}) {
    SCOPED_TRACE(::testing::PrintToString(layout));
    const Sets sets = joined({"guard.skip_steps=1"}, layout.sets);
    const Guarded before = train_alone(layout.world, sets, {}, 2);
    EXPECT_EQ(before.skipped, 0);
    const bool is_pipeline = make_recipe(sets).parallel.pipeline.stages > 1;
    for (int64_t stage = 0; stage < (is_pipeline ? 2 : 1); ++stage) {
      const Guarded after = train_alone(layout.world, sets, {2}, 3, kInfinity, stage);
      EXPECT_EQ(after.skipped, 1);
      ASSERT_EQ(after.curve.losses.size(), 3U);
      EXPECT_FALSE(std::isfinite(after.curve.losses[2]));
      expect_equal(after.curve.parameters, before.curve.parameters);
    }
  }
}

TEST(Guard, DecidesAlikeOnAnyRanks) {
  const Sets sets = {"guard.skip_steps=2", "train.accumulation=2"};
  const Guarded expected = train_alone(1, sets, {1, 3, 4}, 6);
  EXPECT_EQ(expected.skipped, 3);
  for (const GuardedLayout& layout :
       {GuardedLayout{2, {}}, GuardedLayout{3, {}}, GuardedLayout{2, {"parallel.tensor=2"}},
        GuardedLayout{4, {"parallel.tensor=2"}}, GuardedLayout{2, kTwoStages},
        GuardedLayout{4, kTwoStagesOfTensorGroups}}) {
    SCOPED_TRACE(::testing::PrintToString(layout));
    const Guarded found = train_alone(layout.world, joined(sets, layout.sets), {1, 3, 4}, 6);
    EXPECT_EQ(found.skipped, 3);
    for (const size_t step : {0U, 2U, 5U}) {
      EXPECT_NEAR(found.curve.losses[step], expected.curve.losses[step], 1e-5 * expected.curve.losses[step]);
    }
  }
}

TEST(Guard, OneTooManyStopsAndNamesTheTensor) {
  const Guarded found = train_alone(2, {"guard.skip_steps=2"}, {1, 2, 3}, 6);
  for (const char* part : {"[train.step] the gradient of ", " is not finite in step 4 (loss ",
                           ", after 2 skipped in a row); lower optimizer.lr"}) {
    EXPECT_NE(found.error.find(part), std::string::npos) << part << ": " << found.error;
  }
  EXPECT_EQ(found.error.find("-nan"), std::string::npos) << found.error;
  EXPECT_EQ(found.error.find("precision.compute"), std::string::npos) << "fp32 already: " << found.error;
  const Guarded narrow = train_alone(2, {"guard.skip_steps=2", "precision.compute=bf16"}, {1, 2, 3}, 6);
  EXPECT_TRUE(narrow.error.ends_with(", or set precision.compute = \"fp32\"")) << narrow.error;
  EXPECT_EQ(train_alone(2, {"guard.skip_steps=2"}, {1, 2, 4, 5}, 6).error, "");
}

// The error names the model's first trained tensor. Only one stage has this tensor: the first or a later one.
TEST(Guard, NamesTheFirstTensorOfAnyStage) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"cls_token", ""},
      {"blocks.1.norm1.weight", "\"blocks.0.*: freeze\""},
      {"norm.weight", "\"blocks.*: freeze\""},
  };
  for (const auto& [name, frozen] : cases) {
    for (const GuardedLayout& layout :
         {GuardedLayout{1, {}}, GuardedLayout{2, {"parallel.pipeline=2", "parallel.stages=[1, 2]"}},
          GuardedLayout{3, {"parallel.pipeline=3", "parallel.stages=[1, 1, 1]"}},
          GuardedLayout{4, {"parallel.pipeline=2", "parallel.stages=[1, 2]", "parallel.tensor=2"}}}) {
      SCOPED_TRACE(concat(::testing::PrintToString(layout), ", ", name));
      Sets sets = layout.sets;
      if (!frozen.empty()) {
        sets.push_back(concat("optimizer.groups=[\"cls_token: freeze\", \"pos_embed: freeze\", ",
                              "\"patch_embed.*: freeze\", ", frozen, "]"));
      }
      const std::string error = train_alone(layout.world, sets, {1}, 2).error;
      EXPECT_TRUE(
          error.starts_with(concat("[train.step] the gradient of ", name, " is not finite in step 2 (loss ")))
          << error;
    }
  }
}

class GuardSpike : public ::testing::TestWithParam<GuardedLayout> {};

TEST_P(GuardSpike, IsSkippedAndTheNextOneStops) {
  const auto& [world, layout] = GetParam();
  const Sets sets = joined({"guard.spike_factor=3", "guard.spike_window=2", "guard.spike_steps=1"}, layout);
  const Guarded calm = train_alone(world, sets, {}, 3), skipped = train_alone(world, sets, {3}, 4, 3000.0);
  EXPECT_EQ(calm.skipped, 0);
  EXPECT_EQ(skipped.skipped, 1);
  EXPECT_GT(skipped.curve.losses[3], 3 * skipped.curve.losses[2]);
  for (const auto& [name, tensor] : calm.curve.parameters)
    EXPECT_TRUE(tensor.equal(skipped.curve.parameters.at(name))) << name;
  const std::string error = train_alone(world, sets, {3, 4}, 6, 3000.0).error;
  for (const char* part :
       {"[train.step] step 5 has loss ",
        ", after 1 steps skipped in a row: expected at most guard.spike_factor = 3 times the median ",
        "; lower optimizer.lr, or raise guard.spike_factor"}) {
    EXPECT_NE(error.find(part), std::string::npos) << part << ": " << error;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, GuardSpike,
                         ::testing::Values(GuardedLayout{2, {}}, GuardedLayout{2, kTwoStages},
                                           GuardedLayout{4, kTwoStagesOfTensorGroups}));

// The steps after a spike change nothing, the order of the batches goes on, and a checkpoint within the range
// knows how many are left.
TEST(Guard, ASpikeTakesTheStepsAfterItAlong) {
  const Sets sets = {"guard.spike_factor=3", "guard.spike_window=2", "guard.spike_skip=2"};
  const Guarded calm = train_alone(2, sets, {}, 2), skipped = train_alone(2, sets, {2}, 5, 3000.0);
  EXPECT_EQ(skipped.skipped, 3);
  ASSERT_EQ(skipped.curve.losses.size(), 5U);
  for (const auto& [name, tensor] : calm.curve.parameters)
    EXPECT_TRUE(tensor.equal(skipped.curve.parameters.at(name))) << name;
  const TemporaryFolder folder("tessera-guard");
  const Guarded whole = train_alone(2, sets, {2}, 6, 3000.0);
  train_guarded(2, sets, {2}, 4, folder.path(), 3000.0);
  const Guarded rest = train_guarded(2, sets, {2}, 6, folder.path(), 3000.0);
  EXPECT_EQ(rest.skipped, 3);
  for (const auto& [name, tensor] : whole.curve.parameters)
    EXPECT_TRUE(tensor.equal(rest.curve.parameters.at(name))) << name;
}

// What the guard has seen is part of the checkpoint: the third bad step in a row ends a run that was stopped
// between the second and the third.
class GuardResume : public ::testing::TestWithParam<GuardedLayout> {};

TEST_P(GuardResume, DecidesAsTheUninterruptedRun) {
  const auto& [world, layout] = GetParam();
  const Sets sets = joined({"guard.skip_steps=2", "guard.spike_factor=50", "guard.spike_window=3"}, layout);
  for (const int64_t cut : {2, 3, 5}) {
    const TemporaryFolder folder("tessera-guard");
    const Guarded whole = train_alone(world, sets, {1, 2, 4}, 6);
    Guarded parts = train_guarded(world, sets, {1, 2, 4}, cut, folder.path());
    const Guarded rest = train_guarded(world, sets, {1, 2, 4}, 6, folder.path());
    auto& losses = parts.curve.losses;
    losses.insert(losses.end(), rest.curve.losses.begin(), rest.curve.losses.end());
    ASSERT_EQ(losses.size(), whole.curve.losses.size());
    for (size_t i = 0; i < losses.size(); ++i) {
      if (!std::isfinite(losses[i])) continue;
      EXPECT_EQ(losses[i], whole.curve.losses[i]) << i;
    }
    EXPECT_EQ(rest.skipped, whole.skipped);
    for (const auto& [name, tensor] : whole.curve.parameters)
      EXPECT_TRUE(tensor.equal(rest.curve.parameters.at(name))) << name;
  }
  const TemporaryFolder folder("tessera-guard");
  train_guarded(world, sets, {1, 2, 3}, 3, folder.path());
  EXPECT_NE(train_guarded(world, sets, {1, 2, 3}, 4, folder.path()).error.find("after 2 skipped in a row"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Layouts, GuardResume,
                         ::testing::Values(GuardedLayout{2, {}}, GuardedLayout{2, kTwoStages}));

/// Runs the loop on one rank; the evaluations.
std::vector<monitor::EvalMetrics> run_loop(const Sets& sets, const fs::path& run_dir) {
  std::vector<monitor::EvalMetrics> evals;
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe(sets);
    const auto state = assemble(recipe, make_plan(recipe, 1), mesh, true);
    const auto source = data::open_source(recipe.data.source, "train", source_options(recipe));
    Log log(false);
    data::LoaderOptions options = loader_options(recipe, {}, 1, log);
    const recipe::BatchSizes sizes = recipe::resolve_batch(recipe.train, 1);
    options.batch = sizes.batch;
    const recipe::StepCounts counts = recipe::count_steps(recipe, source->size(), sizes.batch);
    monitor::Monitor monitor({run_dir, counts.total, 1, false, 0, 0}, log);
    train::run(*state,
               {*source, *source, sizes, counts, options, run_dir / "checkpoints", [] { return false; }},
               mesh, &monitor, log);
    evals = monitor.evals();
  });
  return evals;
}

TEST(Keeping, TheBestIsThatOfTheMetricAskedFor) {
  for (const char* metric : {"top1", "loss", "loss_ema"}) {
    SCOPED_TRACE(metric);
    const TemporaryFolder folder("tessera-best");
    const auto evals = run_loop({"train.eval_every_steps=1", "checkpoint.every_steps=100", "ema.decay=0.5",
                                 concat("checkpoint.best=", metric), "optimizer.lr=0.05"},
                                folder.path());
    ASSERT_EQ(evals.size(), 6U);
    int64_t best = 0;
    double value = kInfinity;
    for (const auto& eval : evals) {
      const double mine = metric == std::string("top1")   ? -eval.top1
                          : metric == std::string("loss") ? eval.loss
                                                          : eval.loss_ema.value();
      if (mine < value) {
        value = mine;
        best = eval.step;
      }
    }
    const auto json = nlohmann::json::parse(read_file(folder.path() / "checkpoints/best.json"));
    EXPECT_EQ(json.at("step"), best);
  }
}

TEST(Keeping, AsManyOfTheBestAsAskedFor) {
  const TemporaryFolder folder("tessera-best");
  const auto evals = run_loop({"train.eval_every_steps=1", "checkpoint.every_steps=100", "checkpoint.keep=1",
                               "checkpoint.best=loss", "checkpoint.keep_best=3", "optimizer.lr=0.05"},
                              folder.path());
  std::vector<std::pair<double, int64_t>> expected;
  for (const auto& eval : evals) expected.emplace_back(eval.loss, eval.step);
  std::sort(expected.begin(), expected.end());
  const auto json = nlohmann::json::parse(read_file(folder.path() / "checkpoints/best.json"));
  ASSERT_EQ(json.at("kept").size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    const auto [loss, step] = expected[i];
    EXPECT_EQ(json.at("kept")[i].at("step"), step);
    EXPECT_EQ(json.at("kept")[i].at("score"), -loss);
    EXPECT_TRUE(fs::exists(folder.path() / concat("checkpoints/step_0000000", step))) << step;
  }
}

TEST(Keeping, MultiplesStay) {
  const TemporaryFolder folder("tessera-keep");
  run_loop({"train.eval_every_steps=100", "checkpoint.every_steps=1", "checkpoint.keep=1",
            "checkpoint.keep_every=2"},
           folder.path());
  for (const int64_t step : {2, 4, 6})
    EXPECT_TRUE(fs::exists(folder.path() / concat("checkpoints/step_0000000", step))) << step;
  for (const int64_t step : {1, 3, 5})
    EXPECT_FALSE(fs::exists(folder.path() / concat("checkpoints/step_0000000", step))) << step;
}

}  // namespace
}  // namespace tessera::train
