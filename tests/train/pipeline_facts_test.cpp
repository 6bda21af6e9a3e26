// SPDX-License-Identifier: Apache-2.0
// What a run says of its pipeline: before it starts the micro-batches, after it what each stage waited.
#include "tessera/train/pipeline_facts.h"

#include <gmock/gmock.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "small_run.h"
#include "tessera/eager/step_end.h"
#include "tessera/parallel/pipeline.h"
#include "tessera/plan/schedule.h"

namespace tessera::train {
namespace {

using std::chrono::milliseconds;

/// Passes that are pauses: backward takes twice as long as forward.
class Pauses : public parallel::StageWork {
 public:
  Pauses(const parallel::Pipeline& pipeline, milliseconds forward) : pipeline_(pipeline), forward_(forward) {}
  parallel::Note load(int64_t) override { return {1}; }
  parallel::Note pretended_note(int64_t) override { return {1}; }
  at::Tensor pretended_input(size_t) override { return {}; }
  at::Tensor forward(const parallel::VirtualStagePass& pass, const at::Tensor& x) override {
    std::this_thread::sleep_for(forward_);
    const at::Tensor in = pipeline_.begins_model(pass.local_stage) ? at::ones({1, 1}) : x;
    const at::Tensor out = in * weight_;
    return pipeline_.ends_model(pass.local_stage) ? out.sum() : out;
  }
  void backward(const parallel::VirtualStagePass&, const at::Tensor& output, const at::Tensor& gradient,
                const std::function<void()>& passed) override {
    std::this_thread::sleep_for(2 * forward_);
    gradient.defined() ? output.backward(gradient) : output.backward();
    passed();
  }

 private:
  const parallel::Pipeline& pipeline_;
  const milliseconds forward_;
  at::Tensor weight_ = at::ones({1}).set_requires_grad(true);
};

/// Figures of a pipeline on `world` ranks after body(state, plan, mesh).
std::vector<StageFigures> figures_after(
    int64_t world, const std::vector<std::string>& sets,
    const std::function<void(TrainState&, const plan::Plan&, mesh::Mesh&)>& body) {
  at::set_num_threads(1);
  const recipe::Recipe recipe = make_recipe(sets);
  std::vector<StageFigures> figures;
  run_plan_ranks(recipe, world, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
    const auto state = assemble(recipe, plan, mesh, true);
    mesh.world().barrier("start");
    body(*state, plan, mesh);
    const eager::MeshWorld of_mesh(mesh);
    const std::vector<StageFigures> found = stage_figures(
        plan, mesh, {static_cast<double>(10 + mesh.rank()), of_mesh.wait_seconds(), *of_mesh.stage_waits()});
    if (mesh.rank() == 0) figures = found;
  });
  return figures;
}

void end_step(TrainState& state, mesh::Mesh& mesh) {
  eager::StepEnd end(state, at::zeros({}, at::kDouble), {}, mesh, /*elsewhere=*/true);
}

constexpr int64_t kSteps = 3, kMicroBatches = 4;

/// After kSteps steps in which a forward pass of stage i takes forward[i].
std::vector<StageFigures> figures_of_steps(const std::vector<milliseconds>& forward) {
  const auto stages = static_cast<int64_t>(forward.size());
  return figures_after(
      stages, {concat("parallel.pipeline=", stages), concat("parallel.micro_batches=", kMicroBatches)},
      [&](TrainState& state, const plan::Plan& plan, mesh::Mesh& mesh) {
        parallel::Pipeline pipeline(plan, mesh);
        Pauses work(pipeline, forward[static_cast<size_t>(mesh.rank())]);
        const auto actions = plan::schedule_of(plan::shape_of(plan), pipeline.stage());
        for (int64_t step = 0; step < kSteps; ++step) {
          pipeline.run({actions, kMicroBatches, 1}, work);
          end_step(state, mesh);
        }
      });
}

// (p - 1)(f + b) a step (arXiv 1811.06965), of every stage: the first ones wait for gradients, the last ones
// for activations and for the first ones to end.
TEST(StageFigures, EqualStagesWaitEquallyLong) {
  for (const int64_t stages : {2, 3}) {
    const milliseconds forward{10};
    const double expected = 1e-3 * static_cast<double>(kSteps * (stages - 1) * 3 * forward.count());
    double least = 0, most = 1e9;
    // A busy machine makes pauses longer, at random places.
    for (int attempt = 0; attempt < 5 && (least < 0.8 * expected || most > 1.4 * least); ++attempt) {
      const auto figures = figures_of_steps(std::vector(static_cast<size_t>(stages), forward));
      const auto [low, high] = std::ranges::minmax(figures, {}, &StageFigures::waited_for_stages);
      least = low.waited_for_stages;
      most = high.waited_for_stages;
    }
    EXPECT_GT(least, 0.8 * expected) << stages << " stages";
    EXPECT_LT(most, 1.4 * least) << stages << " stages";
  }
}

TEST(StageFigures, TheStageThatComputesLongestIsNamed) {
  for (const size_t slow : {0, 1, 2}) {
    std::vector<milliseconds> forward(3, milliseconds(8));
    forward[slow] = milliseconds(16);
    EXPECT_THAT(slowest_stage_text(figures_of_steps(forward)),
                ::testing::StartsWith(concat("slowest stage: stage ", slow, " (")));
  }
}

// Rank 1 of stage 0 ends its step late. Rank 0 then waits for its own stage, the ranks of stage 1 for
// another.
TEST(StageFigures, AWaitForTheLastRankOfAStageIsNotForOtherStages) {
  const auto figures = figures_after(4, {"parallel.pipeline=2", "parallel.micro_batches=4"},
                                     [](TrainState& state, const plan::Plan&, mesh::Mesh& mesh) {
                                       if (mesh.rank() == 1) std::this_thread::sleep_for(milliseconds(400));
                                       end_step(state, mesh);
                                     });
  EXPECT_LT(figures[0].waited_for_stages, 0.2);
  EXPECT_GT(figures[0].waited_for_ranks, 0.35);
  EXPECT_GT(figures[1].waited_for_stages, 0.35);
  EXPECT_EQ(figures[0].computed, 11);  // of the rank that computed longest
  EXPECT_EQ(figures[1].computed, 13);
}

// What progress lines and metrics.csv have as `bubble`, and an evaluation's end.
TEST(StageFigures, WaitsAtEndsArePartOfTheBubble) {
  for (const bool evaluates : {false, true}) {
    double waited = 0;
    figures_after(2, {"parallel.pipeline=2", "parallel.micro_batches=4"},
                  [&](TrainState& state, const plan::Plan&, mesh::Mesh& mesh) {
                    eager::MeshWorld world(mesh);
                    EXPECT_EQ(world.stage_waits()->sum(), 0.0);
                    if (mesh.rank() == 0) std::this_thread::sleep_for(milliseconds(200));
                    double value = 1;
                    evaluates ? world.sum({&value, 1}, "evaluation") : end_step(state, mesh);
                    EXPECT_LE(world.stage_waits()->sum(), world.wait_seconds());
                    if (mesh.rank() == 1) waited = world.stage_waits()->sum();
                  });
    EXPECT_GT(waited, 0.15) << evaluates;
  }
  testing::run_ranks({{"shard", 2}}, [](mesh::Mesh& mesh) {
    EXPECT_FALSE(eager::MeshWorld(mesh).stage_waits()) << "no pipeline";
  });
}

/// The row "pipeline" before a start on `world` ranks.
std::string pipeline_row(int64_t world, const std::vector<std::string>& sets) {
  Prepared p;
  p.job.recipe = make_recipe(sets);
  p.ranks.world = world;
  p.plan = make_plan(p.job.recipe, world);
  p.sizes = batch_sizes(p.job.recipe, p.plan);
  const std::string text = pipeline_facts(p).at(0).second;
  return text.substr(0, text.find(": a stage"));
}

TEST(PipelineFacts, SayWhetherTheNumberOfMicroBatchesWasChosen) {
  const std::string chosen = " (chosen; parallel.micro_batches sets another number)";
  EXPECT_EQ(pipeline_row(2, {"parallel.pipeline=2"}),
            "2 stages, 1f1b, 8 micro-batches of 6 images per rank" + chosen);
  EXPECT_EQ(pipeline_row(2, {"parallel.pipeline=2", "train.batch=37"}),
            "2 stages, 1f1b, 8 micro-batches of at most 5 images per rank" + chosen);
  EXPECT_EQ(pipeline_row(2, {"parallel.pipeline=2", "train.batch=1"}),
            "2 stages, 1f1b, 1 micro-batch of 1 image per rank" + chosen);
  EXPECT_EQ(pipeline_row(4, {"parallel.pipeline=2", "parallel.schedule=gpipe", "parallel.micro_batches=6"}),
            "2 stages, gpipe, 6 micro-batches of 4 images per rank");
}

}  // namespace
}  // namespace tessera::train
