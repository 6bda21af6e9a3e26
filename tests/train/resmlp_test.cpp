// SPDX-License-Identifier: Apache-2.0
// A ResMLP through the trainer: the numbers of one rank on any, also in stages; recompute bitwise, resume
// bitwise; an evaluation is the same in stages.
#include "small_run.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/loop/evaluation.h"

namespace tessera::train {
namespace {

constexpr const char* kResMlp = R"(
name = "resmlp"
[model]
family = "resmlp"
image_size = 16
patch_size = 4
width = 24
depth = 3
mlp_width = 40
classes = 7
layer_scale = 0.5
drop_path = 0.2
[data]
source = "fake:96"
workers = 1
[train]
batch = 48
steps = 6
seed = 5
[optimizer]
lr = 1e-2
[precision]
compute = "fp32"
)";

Curve train_resmlp(int64_t world, const Sets& sets, int64_t from, int64_t to,
                   const std::filesystem::path& folder) {
  at::set_num_threads(1);
  Curve result;
  const recipe::Recipe recipe = recipe::parse_recipe(kResMlp, "test", ".", sets);
  run_plan_ranks(recipe, world, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
    const auto state = assemble(recipe, plan, mesh, true);
    if (from > 0) train::load_state(*state, *checkpoint::find(folder, "latest"));
    Curve curve;
    train_until(*state, mesh, to, curve);
    train::save_state(*state, mesh, folder, false);
    if (mesh.rank() == 0) result = curve;
  });
  return result;
}

Curve train_resmlp(int64_t world, const Sets& sets = {}, int64_t steps = 4) {
  const TemporaryFolder folder("tessera-resmlp");
  return train_resmlp(world, sets, 0, steps, folder.path());
}

const Sets kResMlpStages = {"parallel.pipeline=2", "parallel.micro_batches=3"},
           kInterleavedResMlp = {"parallel.pipeline=2", "parallel.micro_batches=2",
                                 "parallel.schedule=interleaved", "parallel.virtual_stages=2"};

TEST(ResMlpLayouts, LossCurveEqualsOneRank) {
  const Curve expected = train_resmlp(1);
  EXPECT_LT(expected.losses.back(), expected.losses.front());
  for (const auto& [world, sets] : std::vector<std::pair<int64_t, Sets>>{{2, {}},
                                                                         {3, {"train.accumulation=2"}},
                                                                         {2, {"shard.level=zero1"}},
                                                                         {4, {"shard.recompute=true"}},
                                                                         {4, kResMlpStages},
                                                                         {2, kInterleavedResMlp}}) {
    SCOPED_TRACE(concat(world, " ranks ", sets.empty() ? "" : sets[0]));
    const Curve found = train_resmlp(world, sets);
    EXPECT_NEAR(found.losses[0], expected.losses[0], 1e-6 * expected.losses[0]);
    expect_close(found, expected, 1e-5);
  }
  EXPECT_EQ(train_resmlp(1, {"shard.recompute=true"}).losses, expected.losses);
}

TEST(ResMlpResume, IsBitwise) {
  for (const auto& [world, sets] :
       std::vector<std::pair<int64_t, Sets>>{{2, {}}, {4, kResMlpStages}, {2, kInterleavedResMlp}}) {
    SCOPED_TRACE(concat(world, " ranks ", join(sets, " ")));
    const TemporaryFolder folder("tessera-resmlp");
    const Curve straight = train_resmlp(world, sets, 6);
    train_resmlp(world, sets, 0, 3, folder.path());
    const Curve second = train_resmlp(world, sets, 3, 6, folder.path());
    expect_equal(second.parameters, straight.parameters);
  }
}

TEST(ResMlpEvaluation, IsTheSameInStages) {
  const TemporaryFolder folder("tessera-resmlp");
  train_resmlp(2, {}, 0, 3, folder.path());
  std::vector<double> losses;
  for (const auto& [world, stages] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {2, 2}, {4, 2}}) {
    const recipe::Recipe recipe = recipe::parse_recipe(
        kResMlp, "test", ".", {"data.source=fake:37", concat("parallel.pipeline=", stages)});
    run_plan_ranks(recipe, world, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
      const auto state = assemble(recipe, plan, mesh, false);
      train::load_state(*state, *checkpoint::find(folder.path(), "latest"));
      const Evaluation result = evaluate_validation(*state, mesh, {.batch = 4});
      EXPECT_EQ(result.metrics.samples, 37);
      if (mesh.rank() == 0) losses.push_back(result.metrics.loss);
    });
  }
  ASSERT_EQ(losses.size(), 3U);
  for (const double loss : losses) EXPECT_NEAR(loss, losses[0], 1e-6);
}

}  // namespace
}  // namespace tessera::train
