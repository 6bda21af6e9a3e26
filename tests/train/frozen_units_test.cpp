// SPDX-License-Identifier: Apache-2.0
// Units at the model's beginning that are not trained have no backward pass; the numbers are those of a
// training that makes one and moves nothing.
#include <fnmatch.h>

#include "small_run.h"
#include "tessera/plan/memory.h"
#include "tessera/recipe/parameter_groups.h"

namespace tessera::train {
namespace {

/// All but block 2 and the head; `how` they are not trained.
std::vector<std::string> with_groups(std::vector<std::string> sets, const std::string& how) {
  sets.push_back(concat("optimizer.groups=[\"[cp]*: ", how, "\", \"blocks.[01].*: ", how, "\"]"));
  sets.emplace_back("train.clip=0");  // the other training's gradients are part of its norm
  return sets;
}

/// Its updates are rounded away.
constexpr const char* kMovesNothing = "lr_scale=1e-30, weight_decay=0";

struct FrozenCase {
  std::string name;
  int64_t world = 1;
  std::vector<std::string> sets = {};
  friend void PrintTo(const FrozenCase& one, std::ostream* out) { *out << one.name; }
};

const std::vector<FrozenCase> kCases = {
    {"OneRank"},
    {"Accumulation", 1, {"train.accumulation=2"}},
    {"Recompute", 2, {"shard.level=zero3", "shard.recompute=true"}},
    {"Zero1", 2, {"shard.level=zero1", "train.accumulation=2"}},
    {"Zero2", 2, {"shard.level=zero2"}},
    {"Replicate", 2, {"shard.level=replicate"}},
    {"Hybrid", 4, {"shard.level=zero3", "shard.ranks=2"}},
    {"NoPrefetch", 2, {"shard.level=zero3", "shard.prefetch=0"}},
    {"MuchPrefetch", 2, {"shard.level=zero3", "shard.prefetch=3", "train.accumulation=2"}},
    {"Tensor", 2, {"parallel.tensor=2"}},
    {"TensorGathersAgain", 4, {"parallel.tensor=2", "parallel.keep_gathered=false", "shard.recompute=true"}},
    {"Pipeline", 2, {"parallel.pipeline=2", "parallel.micro_batches=3"}},
    {"PipelineTrainsOnTheLastStage", 2, {"parallel.pipeline=2", "parallel.stages=[2, 1]"}},
    {"ThreeStages", 3, {"parallel.pipeline=3", "parallel.micro_batches=4", "shard.recompute=true"}},
    {"Interleaved",
     2,
     {"parallel.pipeline=2", "parallel.schedule=interleaved", "parallel.virtual_stages=2",
      "parallel.micro_batches=2"}},
    {"PipelineOfTensorGroups", 4, {"parallel.pipeline=2", "parallel.tensor=2", "parallel.micro_batches=2"}},
    {"Momentum", 2, {"optimizer.name=sgd", "ema.decay=0.9", "shard.level=zero3"}},
    {"Half", 1, {"precision.compute=bf16"}},
};

class FrozenUnits : public ::testing::TestWithParam<FrozenCase> {};

TEST_P(FrozenUnits, TrainAsWithABackwardPass) {
  const auto& [name, world, sets] = GetParam();
  const Curve found = train_layout(world, with_groups(sets, "freeze"), 4);
  const Curve expected = train_layout(world, with_groups(sets, kMovesNothing), 4);
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_LT(found.norms[0], expected.norms[0]);
  const Curve initial = train_layout(world, with_groups(sets, "freeze"), 0);
  for (const auto& [parameter, values] : found.parameters) {
    const bool frozen =
        fnmatch("[cp]*", parameter.c_str(), 0) == 0 || fnmatch("blocks.[01].*", parameter.c_str(), 0) == 0;
    EXPECT_TRUE(values.equal((frozen ? initial : expected).parameters.at(parameter))) << parameter;
  }
  EXPECT_FALSE(initial.parameters.at("head.weight").equal(found.parameters.at("head.weight")));
}

INSTANTIATE_TEST_SUITE_P(Layouts, FrozenUnits, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

// So does the prediction: the head alone keeps activations.
TEST(FrozenUnits, NeedLess) {
  for (const char* level : {"replicate", "zero1", "zero2", "zero3"}) {
    const std::vector<std::string> sets = {concat("shard.level=", level), "model.depth=24"};
    const recipe::Recipe trained = make_recipe(sets);
    const recipe::Recipe frozen = make_recipe({sets[0], sets[1], "optimizer.groups=[\"[!h]*: freeze\"]"});
    const plan::Plan plan = make_plan(frozen, 4);
    const auto memory = [&](const recipe::Recipe& recipe) {
      return plan::predict_memory(recipe.model, plan, cost_inputs(recipe, 4), 12);
    };
    EXPECT_LT(memory(frozen).activations, 0.3 * memory(trained).activations) << level;
    EXPECT_EQ(memory(frozen).states, memory(trained).states) << level;
  }
}

// One that lies behind something trained has a backward pass, and counts as frozen in nothing but its update.
TEST(FrozenUnits, AreThoseAtTheBeginning) {
  const auto count = [](const std::string& group) {
    const recipe::Recipe recipe = make_recipe({concat("optimizer.groups=[\"", group, "\"]")});
    return recipe::frozen_units(recipe.model, recipe.optimizer);
  };
  EXPECT_EQ(count("blocks.*: freeze"), 0);
  EXPECT_EQ(count("[!h]*: freeze"), 4);
  EXPECT_EQ(count("[!h]*: lr_scale=0"), 4);
  EXPECT_EQ(count("[!h]*: lr_scale=0.1"), 0);
  EXPECT_EQ(count("[cp]*: freeze"), 1);
  EXPECT_EQ(count("patch_embed.*: freeze"), 0) << "the class token is trained";
}

}  // namespace
}  // namespace tessera::train
