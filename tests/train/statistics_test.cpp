// SPDX-License-Identifier: Apache-2.0
// Statistics of activations and gradients: on any ranks those of one, with recompute and accumulation, in
// fp16 those of fp32; a step that nobody looks at makes none.
#include "tessera/eager/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "small_run.h"

namespace tessera::train {
namespace {

using ByName = std::map<std::string, monitor::TensorStatistics>;

/// Of step 2 of 3, by kind and name.
ByName statistics_of(int64_t world, const Sets& more) {
  at::set_num_threads(1);
  Sets sets = {"run.statistics_every=2"};
  sets.insert(sets.end(), more.begin(), more.end());
  ByName result;
  const recipe::Recipe recipe = make_recipe(sets);
  run_plan_ranks(recipe, world, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
    const auto state = assemble(recipe, plan, mesh, true);
    Curve curve;
    std::vector<StepResult> steps;
    train_until(*state, mesh, 3, curve, /*as_bytes=*/false, &steps);
    EXPECT_TRUE(steps[0].statistics.empty());
    EXPECT_TRUE(steps[2].statistics.empty());
    if (mesh.rank() != 0) return;
    for (const auto& one : steps[1].statistics) {
      EXPECT_TRUE(result.emplace(one.kind + " " + one.name, one).second) << one.name << " twice";
    }
  });
  return result;
}

void expect_close(const ByName& found, const ByName& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, one] : expected) {
    const monitor::TensorStatistics& other = found.at(name);
    EXPECT_NEAR(other.rms, one.rms, 1e-4 * one.rms) << name;
    EXPECT_NEAR(other.mean, one.mean, 1e-4 * one.rms) << name;
    EXPECT_NEAR(other.largest, one.largest, 1e-3 * one.largest) << name;
    EXPECT_EQ(other.not_finite, one.not_finite) << name;
  }
}

TEST(Statistics, AreTheSameOnAnyRanks) {
  const ByName expected = statistics_of(1, {});
  for (const char* name :
       {"activations stem", "activations blocks.2", "activations head", "gradients pos_embed",
        "gradients blocks.1.attn.qkv.weight", "gradients head.bias"}) {
    ASSERT_TRUE(expected.contains(name)) << name;
    EXPECT_GT(expected.at(name).rms, 0) << name;
    EXPECT_GE(expected.at(name).largest, expected.at(name).rms) << name;
    EXPECT_LE(std::abs(expected.at(name).mean), expected.at(name).rms) << name;
  }
  for (const int64_t world : {2, 3}) expect_close(statistics_of(world, {}), expected);
  expect_close(statistics_of(2, {"shard.recompute=true"}), expected);
  expect_close(statistics_of(2, {"shard.level=replicate"}), expected);
  for (const char* level : {"shard.level=zero3", "shard.level=replicate"}) {
    expect_close(statistics_of(2, {"parallel.tensor=2", level}), expected);
    expect_close(statistics_of(4, {"parallel.tensor=2", level, "shard.recompute=true"}), expected);
  }
}

/// Gradients of the whole step, whatever the micro-batches; what comes out of units is of the first one.
TEST(Statistics, GradientsAreThoseOfTheStep) {
  const ByName whole = statistics_of(2, {}), parts = statistics_of(2, {"train.accumulation=2"});
  for (const auto& [name, one] : whole) {
    if (!name.starts_with("gradients")) continue;
    EXPECT_NEAR(parts.at(name).rms, one.rms, 1e-4 * one.rms) << name;
  }
}

// Rank 0 has what all stages found: with one micro-batch that of one rank. With several, what comes out of
// units is of the first one, whose samples do not depend on where stages begin.
TEST(Statistics, AreTheSameInStages) {
  const ByName expected = statistics_of(1, {});
  const auto in_stages = [](int64_t world, const char* micro_batches, Sets sets) {
    sets.insert(sets.end(), {"parallel.pipeline=2", concat("parallel.micro_batches=", micro_batches)});
    return statistics_of(world, sets);
  };
  for (const char* stages : {"parallel.stages=[1, 2]", "parallel.stages=[0, 3]"})
    expect_close(in_stages(2, "1", {stages}), expected);
  expect_close(in_stages(4, "1", {"parallel.tensor=2", "shard.recompute=true"}), expected);
  const ByName first = in_stages(2, "2", {"parallel.stages=[1, 2]"});
  expect_close(in_stages(2, "2", {"parallel.stages=[0, 3]"}), first);
  expect_close(in_stages(2, "2", {"parallel.schedule=gpipe", "shard.recompute=true"}), first);
  for (const auto& [name, one] : expected) {
    // Activations are of half of the samples.
    const double tolerance = name.starts_with("gradients") ? 1e-4 : 0.2;
    EXPECT_NEAR(first.at(name).rms, one.rms, tolerance * one.rms) << name;
  }
}

/// The loss scale is taken out again.
TEST(Statistics, OfFp16AreThoseOfFp32) {
  const ByName expected = statistics_of(1, {}),
               found = statistics_of(2, {"precision.compute=fp16", "precision.loss_scale=1024"});
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, one] : expected) EXPECT_NEAR(found.at(name).rms, one.rms, 0.03 * one.rms) << name;
}

/// Without a backward pass.
void make_gradients_zero(const TrainState& state) {
  for (const auto& unit : state.sharded->units()) {
    unit->hold_gradient();
    unit->gradient().zero_();
  }
}

TEST(Statistics, GradientsAreWhatThePiecesHold) {
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe({});
    const auto state = assemble(recipe, make_plan(recipe, 2), mesh, true);
    Curve curve;
    train_until(*state, mesh, 1, curve);
    const std::string name = "blocks.1.mlp.fc1.weight";
    make_gradients_zero(*state);
    for (const auto& unit : state->sharded->units()) {
      for (const shard::Shard& shard : unit->shards()) {
        if (shard.name == name) shard.gradient.fill_(-4e-24F);  // whose square is no float
      }
    }
    MeshWorld world(mesh);
    StepStatistics statistics(*state, true);
    const auto found = statistics.finish(/*scale=*/4, world);
    const auto one = std::find_if(found.begin(), found.end(), [&](const auto& s) { return s.name == name; });
    ASSERT_NE(one, found.end());
    EXPECT_NEAR(one->mean, -1e-24, 1e-29);
    EXPECT_NEAR(one->rms, 1e-24, 1e-29);
    EXPECT_NEAR(one->largest, 1e-24, 1e-29);
  });
}

TEST(Statistics, ANumberThatIsNotFiniteIsCounted) {
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe({});
    const auto state = assemble(recipe, make_plan(recipe, 2), mesh, true);
    make_gradients_zero(*state);
    MeshWorld world(mesh);
    StepStatistics statistics(*state, true);
    at::Tensor value = at::full({4}, 2.0);
    if (mesh.rank() == 1) value[0] = -std::numeric_limits<float>::infinity();
    state->context.observe("stem", value);
    statistics.forward_done(true);
    EXPECT_FALSE(state->context.observe);
    const auto found = statistics.finish(1, world);
    EXPECT_EQ(found[0].name, "stem");
    EXPECT_EQ(found[0].not_finite, 1);
    EXPECT_EQ(found[0].mean, 2);
    EXPECT_EQ(found[0].rms, 2);
    EXPECT_EQ(found[0].largest, 2);
    StepStatistics placeholder_batch(*state, true);
    state->context.observe("stem", at::full({4}, mesh.rank() == 0 ? 1.0 : 9.0));
    placeholder_batch.forward_done(mesh.rank() == 0);
    EXPECT_EQ(placeholder_batch.finish(1, world)[0].largest, 1) << "images that do not count";
  });
}

TEST(Statistics, CopiesOfAGradientCountOnce) {
  for (const char* level : {"replicate", "zero1", "zero3"}) {
    testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
      const recipe::Recipe recipe = make_recipe({concat("shard.level=", level)});
      const auto state = assemble(recipe, make_plan(recipe, 2), mesh, true);
      make_gradients_zero(*state);
      const std::string name = "head.bias";
      for (const auto& unit : state->sharded->units()) {
        for (const shard::Shard& shard : unit->shards()) {
          if (shard.name == name) shard.gradient.fill_(std::numeric_limits<float>::infinity());
        }
      }
      MeshWorld world(mesh);
      StepStatistics statistics(*state, true);
      for (const auto& one : statistics.finish(1, world)) {
        if (one.name != name) continue;
        EXPECT_EQ(one.not_finite, 7) << level;  // as many as there are classes
      }
    });
  }
}

}  // namespace
}  // namespace tessera::train
