// SPDX-License-Identifier: Apache-2.0
// Trainings whose blocks' linear layers multiply in fp8: they follow those that do not, on any ranks.
#include <ATen/core/grad_mode.h>

#include <cstring>

#include "small_run.h"

namespace tessera::train {
namespace {

Sets with_fp8(Sets sets = {}) {
  sets.push_back("precision.linear=fp8");
  return sets;
}

class Fp8Ranks : public ::testing::TestWithParam<std::tuple<const char*, int64_t, int64_t>> {};

// The scale of a row depends on that row alone, so layouts differ as without fp8: in the order of sums. A sum
// that differs may round to a neighbour in e4m3.
TEST_P(Fp8Ranks, LossCurveFollowsOneRank) {
  const auto& [compute, world, accumulation] = GetParam();
  const std::string dtype = concat("precision.compute=", compute);
  const Curve expected = train_layout(1, with_fp8({dtype}), 6);
  const Curve found = train_layout(world, with_fp8({dtype, concat("train.accumulation=", accumulation)}), 6);
  EXPECT_NEAR(found.losses[0], expected.losses[0], 1e-5 * expected.losses[0]);
  expect_close(found, expected, 1e-3);
}

INSTANTIATE_TEST_SUITE_P(All, Fp8Ranks,
                         ::testing::Combine(::testing::Values("fp32", "bf16"), ::testing::Values(1, 2, 3),
                                            ::testing::Values(1, 2)),
                         [](const auto& info) {
                           return concat(std::get<0>(info.param), "_ranks_", std::get<1>(info.param),
                                         "_accumulation_", std::get<2>(info.param));
                         });

TEST(Fp8, RecomputeIsBitwise) {
  const Curve plain = train_layout(2, with_fp8(), 4);
  const Curve again = train_layout(2, with_fp8({"shard.recompute=true"}), 4);
  EXPECT_EQ(plain.losses, again.losses);
  EXPECT_EQ(plain.norms, again.norms);
}

/// A training that learns: images of classes, nothing random.
Curve learn(const Sets& sets) {
  Sets all = {"train.steps=200",        "train.label_smoothing=0", "model.dropout=0",
              "model.drop_path=0",      "optimizer.lr=3e-3",       "train.clip=1",
              "schedule.warmup_steps=6"};
  all.insert(all.end(), sets.begin(), sets.end());
  return train_layout(1, all, 200);
}

double mean_of_last(const std::vector<double>& losses, size_t n) {
  double sum = 0;
  for (size_t i = losses.size() - n; i < losses.size(); ++i) sum += losses[i];
  return sum / static_cast<double>(n);
}

TEST(Fp8, LearnsAsBf16Does) {
  const Curve bf16 = learn({"precision.compute=bf16"});
  const Curve fp8 = learn(with_fp8({"precision.compute=bf16"}));
  ASSERT_LT(mean_of_last(bf16.losses, 5), 0.5 * bf16.losses[0]);  // it learns
  EXPECT_NEAR(fp8.losses[0], bf16.losses[0], 0.02 * bf16.losses[0]);
  EXPECT_NE(fp8.losses, bf16.losses);
  EXPECT_NEAR(mean_of_last(fp8.losses, 5), mean_of_last(bf16.losses, 5), 0.05 * bf16.losses[0]);
}

/// What comes out of every segment in the forward pass of the first batch.
std::map<std::string, at::Tensor> outputs_of(const recipe::Recipe& recipe) {
  std::map<std::string, at::Tensor> outputs;
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    const at::NoGradGuard no_grad;
    const auto state = assemble(recipe, make_plan(recipe, 1), mesh, false);
    state->context.observe = [&](const std::string& name, const at::Tensor& value) {
      outputs[name] = value.clone();
    };
    data::Batch batch = placeholder_batch(*state);
    for (size_t i = 0; i < batch.images.size(); ++i) {
      batch.images[i] = static_cast<float>(i % 13) / 6.0F - 1.0F;
    }
    forward(*state, batch, /*training=*/false, 0);
  });
  return outputs;
}

TEST(Fp8, ComputesInBlocksAlone) {
  for (const Sets& family : {Sets{}, Sets{"model.family=resmlp"}}) {
    Sets sets = family;
    std::string text = kRecipe;
    if (!family.empty()) {
      for (const char* line : {"heads = 2\n", "dropout = 0.2\n"})
        text.erase(text.find(line), std::strlen(line));
    }
    const auto plain = outputs_of(recipe::parse_recipe(text, "test", ".", sets));
    const auto fp8 = outputs_of(recipe::parse_recipe(text, "test", ".", with_fp8(sets)));
    EXPECT_TRUE(fp8.at("stem").equal(plain.at("stem")));
    for (const char* block : {"blocks.0", "blocks.1", "blocks.2"}) {
      EXPECT_FALSE(fp8.at(block).equal(plain.at(block))) << block;
      EXPECT_LT((fp8.at(block) - plain.at(block)).abs().max().item<float>(),
                0.1F * plain.at(block).abs().max().item<float>());
    }
  }
}

TEST(Fp8, TheCopyInFloat32IsWithout) {
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe(with_fp8());
    const auto state = assemble(recipe, make_plan(recipe, 1), mesh, false);
    EXPECT_TRUE(state->context.fp8);
    EXPECT_FALSE(in_float32(*state, mesh)->context.fp8);
  });
}

}  // namespace
}  // namespace tessera::train
