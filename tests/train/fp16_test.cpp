// SPDX-License-Identifier: Apache-2.0
// fp16 compute with a loss scale: it follows fp32, overflows are skipped alike on any ranks, and a resumed
// run has the scale of the uninterrupted one.
#include "small_run.h"
#include "tessera/base/file.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

struct Scaled {
  Curve curve;
  std::vector<double> scales;  // after each step
  int64_t overflows = 0;
};

/// Steps from the folder's newest checkpoint, or 0, to `until`; saved at the end.
Scaled train_fp16(int64_t world, const Sets& more, int64_t until, const fs::path& folder) {
  at::set_num_threads(1);
  Sets sets = {"precision.compute=fp16"};
  sets.insert(sets.end(), more.begin(), more.end());
  Scaled result;
  testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe(sets);
    const auto state = assemble(recipe, make_plan(recipe, world), mesh, true);
    if (const auto saved = checkpoint::find(folder, "latest")) train::load_state(*state, *saved);
    mesh.world().barrier("loaded");
    Scaled found;
    while (state->step < until) {
      train_until(*state, mesh, state->step + 1, found.curve);
      found.scales.push_back(state->loss_scale.value());
    }
    found.curve.parameters = gather_parameters(*state);
    found.overflows = state->loss_scale.overflows();
    train::save_state(*state, mesh, folder, false);
    if (mesh.rank() == 0) result = found;
  });
  return result;
}

Scaled train_alone(int64_t world, const Sets& sets, int64_t until) {
  const TemporaryFolder folder("tessera-fp16");
  return train_fp16(world, sets, until, folder.path());
}

const Sets kOverflowing = {"precision.loss_scale=536870912", "train.steps=40"};  // 2^29

TEST(Fp16, FollowsFp32) {
  const Curve expected = train_layout(1, {}, 4);
  for (const int64_t world : {1, 2}) {
    const Scaled found = train_alone(world, {"precision.loss_scale=1024"}, 4);
    EXPECT_EQ(found.overflows, 0);
    EXPECT_EQ(found.scales, std::vector<double>(4, 1024));
    expect_close(found.curve, expected, 1e-2);
  }
}

TEST(Fp16, FollowsFp32InOtherLayouts) {
  const Curve expected = train_layout(1, {}, 4);
  for (const Sets& layout :
       {Sets{"parallel.tensor=2"}, Sets{"parallel.pipeline=2", "parallel.micro_batches=4"}}) {
    Sets sets = {"precision.compute=fp16", "precision.loss_scale=1024"};
    sets.insert(sets.end(), layout.begin(), layout.end());
    const Curve found = train_layout(2, sets, 4);
    for (size_t step = 0; step < expected.losses.size(); ++step) {
      EXPECT_NEAR(found.losses[step], expected.losses[step], 1e-2) << layout[0];
      EXPECT_NEAR(found.norms[step], expected.norms[step], 1e-2 * expected.norms[step]) << layout[0];
    }
  }
}

// Every stage sees what overflowed in any of them.
TEST(Fp16, AnOverflowInAnyStageSkipsTheStepOfAll) {
  Sets sets = kOverflowing;
  for (const char* one : {"precision.compute=fp16", "parallel.pipeline=2", "parallel.micro_batches=2"})
    sets.emplace_back(one);
  const recipe::Recipe recipe = make_recipe(sets);
  run_plan_ranks(recipe, 2, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
    const auto state = assemble(recipe, plan, mesh, true);
    const Parameters before = whole_parameters(*state, mesh);
    Curve curve;
    train_until(*state, mesh, 1, curve);
    EXPECT_EQ(state->loss_scale.overflows(), 1);
    EXPECT_EQ(state->loss_scale.value(), 268435456);
    expect_equal(whole_parameters(*state, mesh), before);
    train_until(*state, mesh, 24, curve);
    EXPECT_LT(state->loss_scale.overflows(), 20);
    EXPECT_TRUE(std::isfinite(curve.norms.back()));
  });
}

TEST(Fp16, AnOverflowChangesNothingButTheScale) {
  const Scaled none = train_alone(2, kOverflowing, 0), one = train_alone(2, kOverflowing, 1);
  EXPECT_EQ(one.overflows, 1);
  EXPECT_EQ(one.scales, std::vector<double>{268435456});
  EXPECT_TRUE(std::isfinite(one.curve.losses[0]));
  for (const auto& [name, tensor] : none.curve.parameters)
    EXPECT_TRUE(tensor.equal(one.curve.parameters.at(name))) << name;
  const Scaled trained = train_alone(2, kOverflowing, 24);
  EXPECT_LT(trained.overflows, 20);
  EXPECT_TRUE(std::isfinite(trained.curve.norms.back()));
  EXPECT_FALSE(trained.curve.parameters.at("head.weight").equal(none.curve.parameters.at("head.weight")));
}

// The step whose use doubles the scale divides its own gradients by the scale that they were made with.
TEST(Fp16, AGrowingScaleDoesNotHalveItsStep) {
  at::set_num_threads(1);
  std::vector<Parameters> after;
  for (const char* good : {"0", "1999"}) {
    testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
      // SGD: AdamW's first update hardly depends on the gradient's size.
      const recipe::Recipe recipe = make_recipe(
          {"precision.compute=fp16", "precision.loss_scale=1024", "optimizer.name=sgd", "train.clip=0"});
      const auto state = assemble(recipe, make_plan(recipe, 1), mesh, true);
      state->loss_scale.restore(
          concat(R"({"on": true, "value": 1024, "overflows": 0, "good_in_a_row": )", good, "}"));
      Curve curve;
      train_until(*state, mesh, 1, curve);
      EXPECT_EQ(state->loss_scale.value(), std::string(good) == "0" ? 1024 : 2048);
      after.push_back(curve.parameters);
    });
  }
  expect_equal(after[1], after[0]);
}

TEST(Fp16, OverflowsAreTheSameOnAnyRanks) {
  const Scaled expected = train_alone(1, kOverflowing, 4);
  EXPECT_EQ(expected.overflows, 4);
  for (const int64_t world : {2, 3}) EXPECT_EQ(train_alone(world, kOverflowing, 4).scales, expected.scales);
}

TEST(Fp16, AResumedRunHasTheScaleOfTheUninterruptedOne) {
  const Scaled whole = train_alone(2, kOverflowing, 24);
  const TemporaryFolder folder("tessera-fp16");
  train_fp16(2, kOverflowing, 9, folder.path());
  const Scaled rest = train_fp16(2, kOverflowing, 24, folder.path());
  EXPECT_EQ(rest.scales, std::vector<double>(whole.scales.begin() + 9, whole.scales.end()));
  EXPECT_EQ(rest.overflows, whole.overflows);
  for (const auto& [name, tensor] : whole.curve.parameters)
    EXPECT_TRUE(tensor.equal(rest.curve.parameters.at(name))) << name;
}

}  // namespace
}  // namespace tessera::train
