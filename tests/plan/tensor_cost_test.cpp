// SPDX-License-Identifier: Apache-2.0
// Memory and traffic under tensor parallelism, computed by hand from docs/parallel.md and docs/memory.md.
#include <gtest/gtest.h>

#include "tessera/arch/cut.h"
#include "tessera/plan/memory.h"
#include "tessera/plan/traffic.h"
#include "tests/arch/small_config.h"
#include "tests/error_text.h"

namespace tessera::plan {
namespace {

constexpr CostInputs kFullWidth{4, 4}, kHalfWidth{2, 4};

// 4 patches of 2 x 2 pixels, width 8, MLP 64, 2 heads, 3 classes, average pool: 4 tokens.
//   stem   pos_embed 4*8 + patch weight 8*4 + bias 8                                          = 72
//   block  cut in two: qkv 12*8+12, proj 8*4, fc1 32*8+32, fc2 8*32                           = 684
//          not cut: norms 4*8, biases of proj and fc2 8 + 8                                   = 48
//   head   fc_norm 2*8 + 8*3+3                                                                = 43
constexpr double kStemValues = 72, kCutValues = 684, kRowsValues = 48,
                 kHeadValues = 44;  // the head padded to 4 ranks

constexpr arch::SmallSizes kSizes = {
    .image_size = 4, .patch_size = 2, .channels = 1, .width = 8, .mlp_width = 64, .classes = 3};

arch::VitConfig two_heads() {
  arch::VitConfig config = arch::small_vit(kSizes, 2);
  config.class_token = false;
  config.pool = arch::Pool::kAverage;
  return config;
}

/// The head reads one token of five.
arch::VitConfig with_class_token() {
  arch::VitConfig config = two_heads();
  config.class_token = true;
  config.pool = arch::Pool::kClassToken;
  return config;
}

Plan cut_plan(const arch::ModelConfig& config, int64_t world, const Layout& layout, bool keep_gathered,
              Level level = Level::kZero3) {
  Plan plan = uniform_plan(config, world, level, false, 1);
  set_tensor(&plan, config, layout, keep_gathered);
  return plan;
}

Plan recomputing(Plan plan, Recompute recompute) {
  for (UnitPlan& unit : plan.units) {
    if (unit.is_cut()) unit.recompute = recompute;
  }
  return plan;
}

TEST(TensorMemory, StatesAndGradientsOfTheCutUnitAndItsRows) {
  ASSERT_EQ(arch::parameter_count(two_heads()), 72 + 2 * (2 * 684 + 48) + 43);
  // Halves over 2 ranks each, the rest over all 4.
  const double values = kStemValues / 4 + 2 * (kCutValues / 2 + kRowsValues / 4) + kHeadValues / 4;
  for (const bool adjacent : {true, false}) {
    const Plan plan = cut_plan(two_heads(), 4, {2, adjacent}, true);
    const Memory memory = predict_memory(two_heads(), plan, kFullWidth, 0);
    EXPECT_EQ(memory.states, 12 * values);
    EXPECT_EQ(memory.gradients, 4 * values);
    EXPECT_EQ(saved_bytes(two_heads(), plan), 12 * values);
  }
  // Replicated: a rank holds its half and all the rest.
  const Memory replicated = predict_memory(
      two_heads(), cut_plan(two_heads(), 4, {2, true}, true, Level::kReplicate), kFullWidth, 0);
  EXPECT_EQ(replicated.states, 12 * (kStemValues + 2 * (kCutValues + kRowsValues) + kHeadValues));
  // With 2 ranks in all a rank has its half alone.
  const Memory two = predict_memory(two_heads(), cut_plan(two_heads(), 2, {2, true}, true), kFullWidth, 0);
  EXPECT_EQ(two.states, 12 * (kStemValues / 2 + 2 * (kCutValues + kRowsValues / 2) + kHeadValues / 2));
}

// As tests/plan/memory_test.cpp explains for whole units: gathered, collected twice, received, packed. At
// zero3 the rows are at zero1: whole in the compute dtype, their gradients collected in fp32.
TEST(TensorMemory, GatheredUnits) {
  const double all = kStemValues + 2 * kCutValues + 2 * kRowsValues + kHeadValues,
               one_parameter = 2 * (32 * 8);
  EXPECT_EQ(predict_memory(two_heads(), cut_plan(two_heads(), 4, {2, true}, true), kFullWidth, 0).gathered,
            4 * all + 4 * all + 4 * (kCutValues + kRowsValues) + 4 * one_parameter)
      << "both units of a block are reduced at once";
  // In bf16 also the slices that are gathered from.
  const double slices = kStemValues / 4 + 2 * (kCutValues / 2 + kRowsValues / 4) + kHeadValues / 4;
  EXPECT_EQ(predict_memory(two_heads(), cut_plan(two_heads(), 4, {2, true}, true), kHalfWidth, 0).gathered,
            2 * all + 2 * (kStemValues + 2 * kCutValues + kHeadValues) + 4 * 2 * kRowsValues +
                2 * kCutValues + 4 * kRowsValues + 2 * slices + 2 * one_parameter);
}

// In bf16 pieces add up the gradients of an MLP's halves, 32 x 8 each, in fp32. One image is one piece.
TEST(TensorMemory, SumsOfPieces) {
  const Plan plan = cut_plan(two_heads(), 4, {2, true}, true);
  const auto gathered = [&](const CostInputs& inputs, int64_t images) {
    return predict_memory(two_heads(), plan, inputs, images).gathered;
  };
  for (const CostInputs& inputs : {kFullWidth, kHalfWidth}) {
    CostInputs in_pieces = inputs;
    in_pieces.tensor_pieces = true;
    EXPECT_EQ(gathered(in_pieces, 1), gathered(inputs, 1));
    EXPECT_EQ(gathered(in_pieces, 2) - gathered(inputs, 2), inputs.compute_bytes == 2 ? 2 * 4 * (32 * 8) : 0);
  }
}

// One image, fp32. Own rows: the inputs of both norms (2 x 8 values, 4 statistics). Rows of both samples of
// the group: queries, keys, values and output of one head (16), 32 hidden units, 1 logarithm of the softmax;
// gathered inputs 2 x 8.
TEST(TensorMemory, ActivationsOfBlocks) {
  const double kept = 4 * 4 * (16 + 4 + 2 * (16 + 32 + 1)), gathered = 4 * 4 * 2 * 16;
  const double head = 88, images = 4 * 16 * (1 + 4), input = 4 * 4 * 8;
  // Backward: the residual stream's gradient, GELU's output and gradient of both samples, and three (gathered
  // again: four) tensors of both samples that are exchanged.
  const double working = 4 * 4 * (8 + 2 * 2 * 32 + 3 * 2 * 8), working_again = working + 4 * 4 * 2 * 8;
  const auto activations = [](const Plan& plan) {
    return predict_memory(two_heads(), plan, kFullWidth, 1).activations;
  };
  const Plan keeps = cut_plan(two_heads(), 4, {2, true}, true),
             regathers = cut_plan(two_heads(), 4, {2, true}, false);
  EXPECT_EQ(activations(keeps), 2 * (kept + gathered) + head + images + working);
  EXPECT_EQ(activations(regathers), 2 * kept + head + images + working_again);
  // A block that is computed again has its gathered inputs until backward has passed it.
  for (const Plan& plan : {keeps, regathers}) {
    EXPECT_EQ(activations(recomputing(plan, Recompute::kAll)),
              2 * input + (kept + gathered - input) + head + images + working);
    EXPECT_EQ(activations(recomputing(plan, Recompute::kKeepSums)),
              2 * 2 * input + (kept + gathered - 2 * input) + head + images + working);
  }
}

TEST(TensorMemory, ActivationsOfTheLastBlockWhoseHeadReadsOneToken) {
  const std::vector<arch::TensorShare> shares(4, {.degree = 2, .index = 1, .keeps_gathered = true});
  // Own: the input of 5 tokens with its statistics; the sum of one. Of both samples, for the one token: its
  // query and output (4 + 4), 32 hidden units, what a head's query takes to the tokens and brings back (16),
  // the softmax (5); gathered inputs of 5 tokens and of one.
  const double expected = 4 * (5 * (8 + 2) + (8 + 2) + 2 * (4 + 4 + 32 + 16 + 5) + 2 * (5 * 8 + 8));
  const arch::Activations found = arch::activations(with_class_token(), 4, false, shares);
  EXPECT_EQ(found.units[2].all, expected);
  EXPECT_EQ(found.units[2].sums, 4 * 8);
  EXPECT_EQ(found.units[1].sums, 4 * 5 * 8);
}

TEST(TensorMemory, ActivationsOfAResMlp) {
  auto config = arch::small<arch::ResMlpConfig>(kSizes);
  config.depth = 1;
  const std::vector<arch::TensorShare> shares(3, {.degree = 2, .index = 0, .keeps_gathered = true});
  // Own: the input, what the token layer read and made, the sum, what the MLP made. Of both samples: what the
  // MLP read, 32 hidden units before and after GELU.
  EXPECT_EQ(arch::activations(config, 4, false, shares).units[1].all, 4 * 4 * (5 * 8 + 2 * (8 + 2 * 32)));
}

// 3 heads and 3 groups of 32 hidden units on 2 ranks: 1 and 2. The prediction is the second rank's.
TEST(TensorMemory, IsTheRanksThatHoldsMost) {
  arch::VitConfig config = two_heads();
  config.heads = 3;
  config.width = 24;
  config.mlp_width = 96;
  config.depth = 1;
  EXPECT_EQ(arch::hidden_of(96, 2, 0), 32);
  EXPECT_EQ(arch::hidden_of(96, 2, 1), 64);
  const double stem = 4 * 24 + 24 * 4 + 24, head = 2 * 24 + 24 * 3 + 3;
  // Two of three heads: 48 rows of qkv, 16 columns of proj; 64 of 96 hidden units. Both are whole on a rank.
  const double part = 48 * 25 + 24 * 16 + 64 * 25 + 24 * 64, rows = 4 * 24 + 2 * 24;
  const Memory memory = predict_memory(config, cut_plan(config, 2, {2, true}, true), kFullWidth, 0);
  EXPECT_EQ(memory.states, 12 * (stem / 2 + part + rows / 2 + (head + 1) / 2));
}

TEST(TensorMemory, WithTensorOneNothingChanges) {
  const Plan plan = uniform_plan(two_heads(), 4, Level::kZero3, true, 1);
  Plan same = plan;
  set_tensor(&same, two_heads(), {.tensor = 1, .adjacent = false}, false);
  EXPECT_EQ(same, plan);
  const auto ordinary = arch::activations(two_heads(), 2, true);
  const auto whole = arch::activations(two_heads(), 2, true, std::vector<arch::TensorShare>(4));
  EXPECT_EQ(whole.working, ordinary.working);
  for (size_t i = 0; i < whole.units.size(); ++i) EXPECT_EQ(whole.units[i].all, ordinary.units[i].all);
}

TEST(TensorMemory, OfInference) {
  const Plan plan = cut_plan(two_heads(), 4, {2, true}, false);
  const double none = inference_bytes(two_heads(), plan, kFullWidth, 0),
               one = inference_bytes(two_heads(), plan, kFullWidth, 1);
  EXPECT_EQ(one - none, 4 * 4 * (16 + 4 + 2 * (16 + 32 + 1) + 2 * 16));  // a block with its gathered inputs
}

// Of one rank, micro-batch and block with 5 images: u = (t - 1) * 5 images * 5 tokens * 8 * 2 bytes. In the
// last block the attention gathers 5 tokens, everything else is of 1 token.
TEST(TensorTraffic, ExchangedActivations) {
  const arch::ModelConfig config = with_class_token();
  for (const int64_t tensor : {2, 4}) {
    const double u = static_cast<double>(tensor - 1) * 5 * 5 * 8 * 2, read = u / 5;
    const auto exchanged = [&](bool keep_gathered, Recompute recompute) {
      const Plan plan = recomputing(cut_plan(config, 8, {tensor, false}, keep_gathered), recompute);
      return step_traffic(config, plan, kHalfWidth, 3, 5).exchanged;
    };
    const double first = 8 * u, last = 2 * (u + 3 * read);
    EXPECT_EQ(exchanged(true, Recompute::kNone), 3 * (first + last));
    EXPECT_EQ(exchanged(false, Recompute::kNone), 3 * (first + 2 * u + last + u + read));
    for (const bool keep_gathered : {true, false}) {
      EXPECT_EQ(exchanged(keep_gathered, Recompute::kAll), 3 * (first + 3 * u + last + u + 2 * read));
      EXPECT_EQ(exchanged(keep_gathered, Recompute::kKeepSums), 3 * (first + 2 * u + last + u + read));
    }
  }
}

TEST(TensorTraffic, OfAResMlpIsItsChannelMlpsAlone) {
  arch::ResMlpConfig config = arch::resmlp_config("resmlp_12_224");
  const double u = 3.0 * 5 * 196 * 384 * 4;
  const auto exchanged = [&](bool keep_gathered, Recompute recompute) {
    return step_traffic(config, recomputing(cut_plan(config, 4, {4, true}, keep_gathered), recompute),
                        kFullWidth, 1, 5)
        .exchanged;
  };
  EXPECT_EQ(exchanged(true, Recompute::kNone), 12 * 4 * u);
  EXPECT_EQ(exchanged(false, Recompute::kNone), 12 * 5 * u);
  EXPECT_EQ(exchanged(true, Recompute::kAll), 12 * 6 * u);
  EXPECT_EQ(exchanged(true, Recompute::kKeepSums), 12 * 5 * u);
}

// 3 micro-batches. Cut units travel between 2 ranks at zero3, their rows between 4 at zero1: once a step.
TEST(TensorTraffic, ParametersAndGradients) {
  const StepTraffic found =
      step_traffic(two_heads(), cut_plan(two_heads(), 4, {2, true}, true), kHalfWidth, 3, 5);
  EXPECT_EQ(found.gathered, 3 * 2 * (2 * kStemValues + kHeadValues) * 3 / 4 +
                                2 * (3 * 2 * 2 * kCutValues / 2) + 2 * (2 * kRowsValues * 3 / 4));
  EXPECT_EQ(found.reduced, 3 * 2 * (kStemValues + kHeadValues) * 3 / 4 + 2 * (3 * 2 * kCutValues / 2) +
                               2 * (4 * kRowsValues * 3 / 4));
  EXPECT_EQ(found.total(), found.gathered + found.reduced + found.exchanged);
  // Replicated: halves over 2 ranks, all else over 4; sums are scattered and gathered, in fp32, once.
  const StepTraffic replicated = step_traffic(
      two_heads(), cut_plan(two_heads(), 4, {2, true}, true, Level::kReplicate), kHalfWidth, 3, 5);
  const double sums = 4 * ((kStemValues + kHeadValues + 2 * kRowsValues) * 3 / 4 + 2 * kCutValues / 2);
  EXPECT_EQ(replicated.gathered, sums);
  EXPECT_EQ(replicated.reduced, sums);
}

// 2 heads and 2 groups of hidden units on 4 ranks: ranks hold 0, 1, 0, 1 of each. Those with one send most.
TEST(TensorTraffic, OfRanksWithoutHeadsIsTheOthers) {
  const StepTraffic found =
      step_traffic(two_heads(), cut_plan(two_heads(), 8, {4, true}, true), kFullWidth, 1, 0);
  const double head = 48;  // padded to 8 ranks
  EXPECT_EQ(found.reduced, 4 * ((kStemValues + head) * 7 / 8 + 2 * kCutValues / 2 + 2 * kRowsValues * 7 / 8));
}

// docs/parallel.md: tensor parallelism sends less than zero3 over the same ranks below 4.5 D / (t N) images
// per rank and micro-batch. Matrices of a wide model, so that norms, biases, stem and head hardly count.
TEST(TensorTraffic, CrossesThatOfZero3AtTheRule) {
  arch::VitConfig config = arch::vit_config("G/14");
  config.mlp_width = 4 * config.width;
  config.class_token = false;
  config.pool = arch::Pool::kAverage;
  config.depth = 12;
  for (const int64_t tensor : {2, 8}) {
    const Plan cut = cut_plan(config, tensor, {tensor, true}, true),
               whole = uniform_plan(config, tensor, Level::kZero3, false, 1);
    const double without = step_traffic(config, cut, kHalfWidth, 1, 0).total(),
                 an_image = step_traffic(config, cut, kHalfWidth, 1, 1).total() - without;
    const double crossing = (step_traffic(config, whole, kHalfWidth, 1, 1).total() - without) / an_image;
    const double rule =
        4.5 * static_cast<double>(config.width) / static_cast<double>(tensor * config.tokens());
    EXPECT_NEAR(crossing, rule, 0.03 * rule) << tensor;
  }
}

}  // namespace
}  // namespace tessera::plan
