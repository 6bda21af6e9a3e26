// SPDX-License-Identifier: Apache-2.0
// A stop while images do not come: the step that waits for them is given up on all ranks, and the state
// before it is saved.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "small_run.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/checkpoint.h"

namespace tessera::train {
namespace {

/// Another source whose samples from a number of loads on do not come until they are let go.
class Stalling final : public data::Source {
 public:
  explicit Stalling(std::unique_ptr<data::Source> source) : source_(std::move(source)) {}
  int64_t size() const override { return source_->size(); }
  int64_t label(int64_t index) const override { return source_->label(index); }
  data::Stored load(int64_t index) const override {
    ++loads_;
    while (loads_ > most) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return source_->load(index);
  }
  std::string sample_name(int64_t index) const override { return source_->sample_name(index); }
  const std::vector<std::string>& classes() const override { return source_->classes(); }
  bool stalls() const { return loads_ > most; }
  int64_t loads() const { return loads_; }

  std::atomic<int64_t> most = 1'000'000;

 private:
  std::unique_ptr<data::Source> source_;
  mutable std::atomic<int64_t> loads_ = 0;
};

/// Never freed: threads that hang in it are left behind.
Stalling& stalling(const recipe::Recipe& recipe) {
  return *new Stalling(data::open_source(recipe.data.source, "train", source_options(recipe)));
}

struct Stalled {
  LoopResult loop;
  int64_t step = 0;
  bool eval_due = false;
  int64_t loads_of_other = 0;  // training images that the other rank has loaded
};

/// When data stop coming on one of two ranks, and on which.
struct Stall {
  int64_t train_loads = 1'000'000, val_loads = 1'000'000;
  int64_t rank = 1;
};

/// Two ranks train until one of them waits in vain; then both are asked to stop.
Stalled stopped_in_a_stall(const recipe::Recipe& recipe, const std::filesystem::path& folder,
                           const Stall& stall) {
  Stalled outcome;
  Stalling &train = stalling(recipe), &val = stalling(recipe), &other = stalling(recipe);
  run_plan_ranks(recipe, 2, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
    const auto state = assemble(recipe, plan, mesh, true);
    Log log(false);
    launch::Ranks ranks;
    ranks.rank = mesh.rank();
    ranks.world = 2;
    data::LoaderOptions options = loader_options(recipe, ranks, 1, log);
    const recipe::BatchSizes sizes = batch_sizes(recipe, plan);
    options.batch = sizes.batch;
    options.accumulation = sizes.accumulation;
    options.patience = 0.2;
    load_for(plan, &options);
    const recipe::StepCounts counts = recipe::count_steps(recipe, train.size(), sizes.batch);
    const bool stalls = mesh.rank() == stall.rank;
    data::Source& my_train = stalls ? train : other;
    data::Source& my_val = stalls ? val : stalling(recipe);
    train.most = stall.train_loads;
    val.most = stall.val_loads;
    const auto stop = [&] { return train.stalls() || val.stalls(); };
    LoopResult result =
        train::run(*state, {my_train, my_val, sizes, counts, options, folder, stop}, mesh, nullptr, log);
    if (stalls) {
      outcome.loop = std::move(result);
      outcome.step = state->step;
      outcome.eval_due = state->eval_due;
    }
  });
  train.most = val.most = 1'000'000'000;  // lets go of the threads that hang
  outcome.loads_of_other = other.loads();
  return outcome;
}

/// The fourth step waits in vain for the first of its micro-batches. `loads`: images that the rank loads for
/// a step.
Stalled expect_saved(const Sets& layout, int64_t rank, int64_t loads) {
  at::set_num_threads(1);  // bitwise: sums in the same order throughout
  const TemporaryFolder folder("tessera-stall");
  Sets sets = layout;
  sets.emplace_back("data.prefetch=1");
  Sets without = sets;
  without.emplace_back("train.eval_every_epochs=0");
  const recipe::Recipe recipe = make_recipe(without);
  const auto start = std::chrono::steady_clock::now();
  const Stalled outcome =
      stopped_in_a_stall(recipe, folder.path(), {.train_loads = 3 * loads + 5, .rank = rank});
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  EXPECT_LT(taken.count(), 20) << "one wait a step, not one a micro-batch";
  EXPECT_TRUE(outcome.loop.stalled);
  EXPECT_FALSE(outcome.loop.finished);
  // Asked a moment before, it stops after a step that was whole.
  EXPECT_TRUE(outcome.step == 2 || outcome.step == 3) << outcome.step;
  const auto saved = checkpoint::find(folder.path(), "latest");
  EXPECT_TRUE(saved.has_value());
  if (!saved) return outcome;
  // What was saved goes on as if nothing had been.
  Curve rest;
  run_plan_ranks(recipe, 2, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
    const auto state = assemble(recipe, plan, mesh, true);
    train::load_state(*state, *saved);
    EXPECT_EQ(state->step, outcome.step);
    Curve curve;
    train_until(*state, mesh, 6, curve);
    if (mesh.rank() == 0) rest = curve;
  });
  expect_equal(rest.parameters, train_layout(2, sets, 6).parameters);
  return outcome;
}

TEST(Stall, AStopInTrainingSavesTheStateBeforeTheStep) {
  expect_saved({}, 1, 24);
  expect_saved({"train.accumulation=4"}, 1, 24);
}

// The first stage decodes all images. The last one reads labels alone, and waits for the first stage's
// passes.
TEST(Stall, OfTheFirstStageStopsAllStages) {
  for (const char* schedule : {"parallel.schedule=gpipe", "parallel.schedule=1f1b"}) {
    SCOPED_TRACE(schedule);
    const Stalled outcome =
        expect_saved({"parallel.pipeline=2", "parallel.micro_batches=4", schedule}, 0, 48);
    EXPECT_EQ(outcome.loads_of_other, 0);
  }
}

TEST(Stall, AStopInAnEvaluationLeavesItDue) {
  const TemporaryFolder folder("tessera-stall");
  const recipe::Recipe recipe = make_recipe({"train.eval_every_steps=2"});
  for (const int64_t loads : {3, 48 - 1}) {  // the first batch, or the last that the rank has
    SCOPED_TRACE(loads);
    const Stalled outcome =
        stopped_in_a_stall(recipe, folder.path() / std::to_string(loads), {.val_loads = loads});
    EXPECT_TRUE(outcome.loop.stalled);
    EXPECT_EQ(outcome.step, 2);
    EXPECT_TRUE(outcome.eval_due);
    EXPECT_TRUE(checkpoint::find(folder.path() / std::to_string(loads), "latest").has_value());
  }
}

}  // namespace
}  // namespace tessera::train
