// SPDX-License-Identifier: Apache-2.0
// The training loop with a back end that is not LibTorch's: it trains, saves, resumes, evaluates and reports.
#include "tessera/loop/loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <set>

#include "linear_backend.h"
#include "tessera/base/file.h"
#include "tessera/data/open_source.h"
#include "tessera/monitor/report.h"
#include "tests/error_text.h"
#include "thread_world.h"

namespace tessera::loop {
namespace {

namespace fs = std::filesystem;
using Sets = std::vector<std::string>;

constexpr int64_t kClasses = 7, kPixels = 3 * 16 * 16;

recipe::Recipe linear_recipe(const Sets& sets) {
  return recipe::parse_recipe(R"(
name = "linear"
[model]
image_size = 16
patch_size = 8
channels = 3
width = 24
depth = 1
heads = 2
classes = 7
[data]
source = "fake:96"
workers = 1
crop = "none"
flip = false
[train]
batch = 48
steps = 8
seed = 5
clip = 0
eval_every_steps = 4
log_every = 1
[checkpoint]
every_steps = 2
async = false
[optimizer]
lr = 0.05
[schedule]
warmup_steps = 0
name = "constant"
)",
                              "test", ".", sets);
}

struct Trained {
  LoopResult loop;
  std::vector<float> weights;
  std::vector<monitor::StepMetrics> steps;
  std::vector<monitor::EvalMetrics> evals;
  int64_t updates = 0;
};

/// What a test does with a back end before the run.
using Prepare = std::function<void(LinearBackend&)>;

/// Trains on `ranks` threads in `folder`, from its newest checkpoint if there is one; stops after
/// `stop_after` steps of this process if that is not 0. `fault`: of rank 0's folders.
Trained train(const Sets& sets, int64_t ranks, const fs::path& folder, int64_t stop_after = 0,
              const Prepare& prepare = {}, const FolderFault& fault = {}) {
  Trained trained;
  run_thread_ranks(ranks, [&](World& world) {
    RunState state;
    state.recipe = linear_recipe(sets);
    state.plan = plan::uniform_plan(state.recipe.model, ranks, plan::Level::kReplicate, false, 1);
    state.guard = monitor::NumericsGuard(state.recipe.guard);
    state.run = {"a-run", folder.string()};
    LinearBackend backend(kPixels, kClasses, state.recipe.train.seed, world);
    if (prepare) prepare(backend);
    const auto source = data::open_source("fake:96", "train", {16, 3, kClasses});
    const recipe::BatchSizes sizes = recipe::resolve_batch(state.recipe.train, ranks);
    data::LoaderOptions loader;
    loader.seed = state.recipe.train.seed;
    loader.rank = world.rank();
    loader.world = ranks;
    loader.batch = sizes.batch;
    loader.accumulation = sizes.accumulation;
    loader.ranks_decide = true;
    const recipe::StepCounts counts = recipe::count_steps(state.recipe, source->size(), sizes.batch);
    if (const auto saved = checkpoint::find(folder / "checkpoints", "latest"))
      load_state(state, backend, *saved);
    const int64_t until = stop_after > 0 ? state.step + stop_after : counts.total + 1;
    Log log(false);
    std::unique_ptr<monitor::Monitor> monitor;
    if (world.rank() == 0) {
      fs::create_directories(folder);
      monitor = std::make_unique<monitor::Monitor>(monitor::MonitorOptions{.run_dir = folder,
                                                                           .total_steps = counts.total,
                                                                           .log_every = 1,
                                                                           .resume = state.step > 0,
                                                                           .resume_step = state.step},
                                                   log);
    }
    LoopInput input{
        *source, *source, sizes, counts, loader, folder / "checkpoints", [&] { return state.step >= until; }};
    if (world.rank() == 0) input.folder_fault = fault;
    LoopResult result = loop::run(state, backend, world, input, monitor.get(), log);
    if (world.rank() != 0) return;
    monitor->finish();
    trained = {std::move(result), backend.weights(), monitor->steps(), monitor->evals(), backend.updates()};
  });
  return trained;
}

TEST(LinearBackend, LearnsAndIsEvaluated) {
  const TemporaryFolder folder("linear");
  const Trained trained = train({"train.steps=60"}, 1, folder.path(), 0, [](LinearBackend& backend) {
    std::ranges::fill(backend.weights(), 0.0F);  // every class is as likely
  });
  EXPECT_TRUE(trained.loop.finished);
  ASSERT_EQ(trained.steps.size(), 60U);
  EXPECT_NEAR(trained.steps.front().loss, std::log(7.0), 1e-12);
  EXPECT_LT(trained.steps.back().loss, 0.5 * std::log(7.0));
  EXPECT_EQ(trained.evals.size(), 15U);
  EXPECT_EQ(trained.loop.last.metrics.samples, 96);
  EXPECT_GT(trained.loop.last.metrics.top1, 80);
  EXPECT_EQ(trained.loop.last.samples.size(), 48U);
  EXPECT_EQ(trained.updates, 60);
}

// The bias after one step follows from the labels alone: all classes were equally likely.
TEST(LinearBackend, FirstUpdateIsTheFormula) {
  const TemporaryFolder folder("linear");
  const Trained trained = train({"train.steps=1", "train.batch=96"}, 1, folder.path(), 0,
                                [](LinearBackend& backend) { std::ranges::fill(backend.weights(), 0.0F); });
  const auto source = data::open_source("fake:96", "train", {16, 3, kClasses});
  std::vector<double> share(kClasses);
  for (int64_t i = 0; i < source->size(); ++i) share[static_cast<size_t>(source->label(i))] += 1.0 / 96;
  for (size_t c = 0; c < kClasses; ++c)
    EXPECT_NEAR(trained.weights[kClasses * kPixels + c], 0.05 * (share[c] - 1.0 / kClasses), 1e-7) << c;
}

TEST(LinearBackend, IsTheSameOnAnyRanksAndMicroBatches) {
  const TemporaryFolder folder("linear");
  const Trained one = train({}, 1, folder.path() / "one");
  for (const auto& [ranks, sets] :
       std::vector<std::pair<int64_t, Sets>>{{2, {}},
                                             {3, {}},
                                             {1, {"train.accumulation=3"}},
                                             {2, {"train.accumulation=2", "checkpoint.async=true"}}}) {
    const Trained other = train(sets, ranks, folder.path() / std::to_string(ranks + 10 * std::ssize(sets)));
    ASSERT_EQ(other.steps.size(), one.steps.size());
    for (size_t i = 0; i < one.steps.size(); ++i) {
      EXPECT_NEAR(other.steps[i].loss, one.steps[i].loss, 1e-6) << i;
      EXPECT_NEAR(other.steps[i].gradient_norm, one.steps[i].gradient_norm, 1e-6) << i;
    }
    EXPECT_EQ(other.loop.last.metrics.top1, one.loop.last.metrics.top1);
    EXPECT_NEAR(other.loop.last.metrics.loss, one.loop.last.metrics.loss, 1e-6);
  }
}

TEST(LinearBackend, ResumesBitwise) {
  const TemporaryFolder folder("linear");
  const Trained whole = train({}, 1, folder.path() / "whole");
  const Trained begun = train({}, 1, folder.path() / "parts", 3);
  EXPECT_FALSE(begun.loop.finished);
  EXPECT_EQ(begun.updates, 3);
  const Trained resumed = train({}, 1, folder.path() / "parts");
  EXPECT_TRUE(resumed.loop.finished);
  EXPECT_EQ(resumed.weights, whole.weights);
  EXPECT_EQ(resumed.updates, 8);
  ASSERT_EQ(resumed.steps.size(), 8U);  // the rows of the first process were kept
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(resumed.steps[i].loss, whole.steps[i].loss) << i;
  // On other ranks: the state is whole on each.
  const Trained two = train({}, 2, folder.path() / "two", 3);
  const Trained then_one = train({}, 1, folder.path() / "two");
  for (size_t i = 0; i < whole.weights.size(); ++i) EXPECT_NEAR(then_one.weights[i], whole.weights[i], 1e-6);
}

// Rank 0 alone sees it: no rank goes on, waits for another or changes what is in the folder.
TEST(LostFolder, EndsAllRanksAndLeavesTheFolderAlone) {
  for (const char* async : {"checkpoint.async=false", "checkpoint.async=true"}) {
    for (const char* on_failed_save : {"fail", "go_on"}) {
      const TemporaryFolder folder("linear");
      const fs::path checkpoints = folder.path() / "checkpoints";
      const FolderFault fault = [&] {
        return fs::exists(checkpoints / "step_00000004") ? "[train.run_folder] it is lost" : std::string();
      };
      const Sets sets = {"train.steps=60", "checkpoint.keep=1", async, "checkpoint.retries=3",
                         concat("checkpoint.on_failed_save=", on_failed_save)};
      EXPECT_EQ(error_text([&] { train(sets, 2, folder.path(), 0, {}, fault); }),
                "[train.run_folder] it is lost");
      std::set<std::string> names;
      for (const auto& entry : fs::directory_iterator(checkpoints))
        names.insert(entry.path().filename().string());
      EXPECT_EQ(names, std::set<std::string>({"step_00000002", "step_00000004"})) << async << on_failed_save;
    }
  }
}

// No save is due: the line of metrics finds it.
TEST(LostFolder, IsNoticedBetweenSaves) {
  for (const int64_t ranks : {1, 2}) {
    const TemporaryFolder folder("linear");
    std::atomic<int64_t> looked = 0;
    const FolderFault fault = [&] { return ++looked > 5 ? "[train.run_folder] it is lost" : std::string(); };
    const Sets sets = {"train.steps=100000", "train.eval_every_steps=0", "train.eval_every_epochs=0",
                       "checkpoint.every_steps=0", "checkpoint.every_epochs=0"};
    EXPECT_EQ(error_text([&] { train(sets, ranks, folder.path(), 0, {}, fault); }),
              "[train.run_folder] it is lost");
    EXPECT_LT(looked, 20);
    EXPECT_FALSE(fs::exists(folder.path() / "checkpoints")) << "nothing was saved";
  }
}

TEST(LinearBackend, IsReported) {
  const TemporaryFolder folder("linear");
  const Trained trained = train({}, 1, folder.path());
  monitor::ReportInput report;
  report.title = "linear";
  report.steps = trained.steps;
  report.evals = trained.evals;
  report.confusion = trained.loop.last.figures.confusion;
  report.samples = trained.loop.last.samples;
  monitor::write_report(folder.path() / "report.html", report);
  const std::string page = read_file(folder.path() / "report.html");
  EXPECT_NE(page.find("<svg"), std::string::npos);
  EXPECT_TRUE(fs::exists(folder.path() / "metrics.csv"));
}

TEST(LinearBackend, NonFiniteStepsAreSkippedOrEndTheRun) {
  const TemporaryFolder folder("linear");
  const Prepare overflow = [](LinearBackend& backend) {
    backend.weights()[3] = std::numeric_limits<float>::infinity();
  };
  try {
    train({}, 2, folder.path() / "stops", 0, overflow);
    ADD_FAILURE() << "it must throw";
  } catch (const NonFinite& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("the gradient of weight is not finite in step 1"), std::string::npos) << text;
    EXPECT_EQ(text.find("fp32"), std::string::npos) << text;  // it computes in no less
  }
  const Trained skipped =
      train({"guard.skip_steps=100", "train.steps=4"}, 1, folder.path() / "skips", 0, overflow);
  EXPECT_EQ(skipped.loop.skipped_steps, 4);
  EXPECT_EQ(skipped.updates, 0);
}

}  // namespace
}  // namespace tessera::loop
