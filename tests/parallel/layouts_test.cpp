// SPDX-License-Identifier: Apache-2.0
// Every gradient of a step, whatever the layout, against one rank's: in float64, and in fp32 by the kernels
// that train.
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <ostream>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/ops/cpu/cpu.h"
#include "tests/arch/small_config.h"
#include "tests/parallel/covering.h"
#include "tests/parallel/one_step.h"
#include "tests/train/first_difference.h"

namespace tessera::testing {
namespace {

using plan::Level;
using plan::Recompute;

/// Of loss and gradient norm, and of each gradient as a share of its unit's.
double tolerance_of(at::ScalarType dtype) { return dtype == at::kDouble ? 1e-11 : 1e-5; }

constexpr arch::SmallSizes kSizes = {
    .image_size = 12, .patch_size = 4, .width = 24, .depth = 3, .mlp_width = 96, .classes = 5};

arch::VitConfig three_heads() {
  arch::VitConfig config = arch::small_vit(kSizes, 3);
  config.dropout = 0.1;
  return config;
}

arch::ResMlpConfig small_resmlp() {
  auto config = arch::small<arch::ResMlpConfig>(kSizes);
  config.layer_scale = 0.5;
  config.drop_path = 0.2;
  return config;
}

/// What models have, in few models.
struct NamedConfig {
  const char* name;
  arch::ModelConfig config;
};

std::vector<NamedConfig> configs() {
  std::vector<NamedConfig> all = {{"class_token_dropout", three_heads()}};
  arch::VitConfig vit = three_heads();
  vit.class_token = false;
  vit.pool = arch::Pool::kAverage;
  vit.layer_scale = 0.5;
  vit.drop_path = 0.3;
  vit.dropout = 0;
  vit.qk_norm = true;
  vit.mlp_width = 100;  // 25 groups of 4
  all.push_back({"average_layerscale_droppath_qknorm", vit});
  vit = three_heads();
  vit.pool = arch::Pool::kAttention;
  vit.registers = 2;
  vit.head = arch::Head::kTanh;
  vit.dropout = 0;
  all.push_back({"map_registers_tanh", vit});
  vit = three_heads();
  vit.distillation_token = true;
  vit.qk_norm = true;
  vit.drop_path = 0.2;
  all.push_back({"distillation_qknorm", vit});
  vit = three_heads();
  vit.dropout = 0;
  vit.heads = 1;
  vit.mlp_width = 32;  // one rank has all of either
  all.push_back({"one_head", vit});
  vit = three_heads();
  vit.heads = 25;
  vit.width = 100;
  all.push_back({"heads_25", vit});
  all.push_back({"resmlp", small_resmlp()});
  return all;
}

enum class Mix { kAdjacent, kStrided, kMixed };

struct Case {
  NamedConfig model;
  int64_t tensor, data;
  Mix mix;
  Level level;
  int64_t shard;  // ranks of a hybrid group; 0: all
  Recompute recompute;
  bool keep_gathered;
  plan::Offload offload;
  int64_t prefetch, samples, micro_batches, pieces;
  at::ScalarType dtype = at::kDouble;

  int64_t world() const { return tensor * data; }
};

const char* text(Mix mix) {
  return mix == Mix::kAdjacent ? "adjacent" : mix == Mix::kStrided ? "strided" : "mixed";
}

std::string text(const Case& one) {
  return concat(one.model.name, ", tensor ", one.tensor, " x data ", one.data, ", ", text(one.mix), ", ",
                to_string(one.level), one.shard > 0 ? "+ranks" : "", one.shard > 0 ? concat(one.shard) : "",
                ", recompute ", to_string(one.recompute), one.keep_gathered ? ", keeps gathered" : "",
                ", offload ", to_string(one.offload), ", prefetch ", one.prefetch, ", ", one.samples,
                " samples, ", one.micro_batches, " micro-batches, ", one.pieces, " pieces");
}

plan::Plan plan_of(const Case& one) {
  plan::Plan plan =
      plan::uniform_plan(one.model.config, one.world(), one.level, false, one.prefetch, one.offload);
  for (plan::UnitPlan& unit : plan.units) {
    if (!unit.name.starts_with("blocks.")) continue;
    unit.layout = {one.tensor, one.mix != Mix::kStrided};
    if (one.mix == Mix::kMixed && unit.name == "blocks.1") unit.layout = {};
    if (one.mix == Mix::kMixed && unit.name == "blocks.2") unit.layout.adjacent = false;
    const int64_t data = one.world() / unit.layout.tensor;
    if (one.level != Level::kReplicate && one.shard > 0 && data % one.shard == 0) unit.shard = one.shard;
    unit.recompute =
        one.recompute == Recompute::kKeepSums && !unit.is_cut() ? Recompute::kAll : one.recompute;
    unit.keep_gathered = one.keep_gathered && unit.is_cut();
  }
  return plan;
}

StepInput input_of(const Case& one) {
  return {.config = one.model.config,
          .samples = one.samples,
          .micro_batches = one.micro_batches,
          .dtype = one.dtype,
          .pieces = one.pieces};
}

StepResult alone(const StepInput& input) {
  return step_of(input, plan::uniform_plan(input.config, 1, Level::kReplicate, false, 1));
}

/// What differs first between one rank and the layout. With samples for all ranks, where the case has fewer.
std::string first_difference(const Case& one) {
  const StepInput input = input_of(one);
  const recipe::Recipe recipe = recipe_of(input, one.world());
  const plan::Plan single = plan::uniform_plan(input.config, 1, Level::kReplicate, false, 1);
  train::CompareOptions options;
  options.hook_a = options.hook_b = [](train::StepPoint point, eager::TrainState& state) {
    if (point == train::StepPoint::kBegin) spread_weights(state);
  };
  return train::first_difference({"one rank", recipe, single}, {text(one), recipe, plan_of(one)}, options);
}

void expect_one_ranks(const Case& one) {
  SCOPED_TRACE(text(one));
  const StepInput input = input_of(one);
  const StepResult expected = alone(input), found = step_of(input, plan_of(one));
  const double tolerance = tolerance_of(one.dtype), norm = std::sqrt(expected.square_sum);
  EXPECT_NEAR(found.loss, expected.loss, tolerance * expected.loss);
  EXPECT_NEAR(std::sqrt(found.square_sum), norm, tolerance * norm);
  EXPECT_LE(gradient_difference(input.config, found, expected), tolerance);
  if (::testing::Test::HasFailure()) ADD_FAILURE() << first_difference(one);
}

/// Pairs of everything that may be together.
std::vector<Case> all_cases(at::ScalarType dtype) {
  const auto models = configs();
  const std::vector<std::pair<int64_t, int64_t>> ranks = {{2, 1}, {2, 2}, {3, 1}, {4, 1}, {2, 3},
                                                          {3, 2}, {1, 2}, {4, 2}, {3, 3}};
  const std::vector<Mix> mixes = {Mix::kAdjacent, Mix::kStrided, Mix::kMixed};
  const std::vector<std::pair<Level, int64_t>> levels = {
      {Level::kReplicate, 0}, {Level::kZero1, 0}, {Level::kZero2, 0}, {Level::kZero3, 0}, {Level::kZero3, 2}};
  const std::vector<Recompute> recompute = {Recompute::kNone, Recompute::kAll, Recompute::kKeepSums};
  const std::vector<plan::Offload> offload = {plan::Offload::kNone, plan::Offload::kOptimizer,
                                              plan::Offload::kAll};
  const std::vector<int64_t> prefetch = {0, 1, 2};
  // Even, uneven, and fewer than the ranks.
  const std::vector<std::pair<int64_t, int64_t>> samples = {{12, 1}, {7, 2}, {1, 1}, {3, 3}};
  std::vector<Case> cases;
  const std::vector<size_t> sizes = {models.size(),    ranks.size(),
                                     mixes.size(),     levels.size(),
                                     recompute.size(), 2,
                                     offload.size(),   prefetch.size(),
                                     samples.size(),   3};
  for (const auto& at : pairwise_cases(sizes)) {
    cases.push_back({models[at[0]], ranks[at[1]].first, ranks[at[1]].second, mixes[at[2]],
                     levels[at[3]].first, levels[at[3]].second, recompute[at[4]], at[5] == 1, offload[at[6]],
                     prefetch[at[7]], samples[at[8]].first, samples[at[8]].second,
                     static_cast<int64_t>(at[9]) + 1, dtype});
  }
  return cases;
}

class CoveringTable : public ::testing::TestWithParam<Case> {};

TEST_P(CoveringTable, EqualsOneRank) { expect_one_ranks(GetParam()); }

void PrintTo(const Case& one, std::ostream* out) { *out << text(one); }

INSTANTIATE_TEST_SUITE_P(Float64, CoveringTable, ::testing::ValuesIn(all_cases(at::kDouble)));
INSTANTIATE_TEST_SUITE_P(Float32, CoveringTable, ::testing::ValuesIn(all_cases(at::kFloat)));

/// The one that everything began with.
TEST(Layouts, TwoTensorRanksTimesTwoOfData) {
  expect_one_ranks({configs()[0], 2, 2, Mix::kAdjacent, Level::kZero3, 0, Recompute::kNone, true,
                    plan::Offload::kNone, 1, 8, 1, 1});
}

/// What one rank of tensor 2 x data 2 sends over its tensor group in a step of two micro-batches, in rows of
/// a token of a sample.
int64_t rows_of_a_sample(const arch::ModelConfig& config, Recompute recompute, bool keep_gathered) {
  const Case one{{"", config},
                 2,
                 2,
                 Mix::kAdjacent,
                 Level::kReplicate,
                 0,
                 recompute,
                 keep_gathered,
                 plan::Offload::kNone,
                 1,
                 8,
                 2,
                 2};
  const StepResult step = step_of(input_of(one), plan_of(one));
  const int64_t bytes = step.bytes_sent[0].at("gather_rows") + step.bytes_sent[0].at("sum_rows");
  const int64_t micro_batches = 2, samples = 2, row = 24 * 8;
  EXPECT_EQ(bytes % (micro_batches * samples * row), 0);
  return bytes / (micro_batches * samples * row);
}

/// Forward two gathers and two sums a block, backward the same, and what is made again. In the last
/// block the head reads one token of N: that block sums one, and its MLP gathers one.
TEST(Layouts, SendsTheLeast) {
  const auto rows_sent = [](Recompute recompute, bool keep_gathered, double layer_scale) {
    arch::VitConfig config = three_heads();
    config.layer_scale = layer_scale;
    return rows_of_a_sample(config, recompute, keep_gathered);
  };
  const int64_t n = 10;
  EXPECT_EQ(rows_sent(Recompute::kNone, true, 0), 2 * 8 * n + (n + 3) * 2);
  EXPECT_EQ(rows_sent(Recompute::kNone, false, 0), 2 * 10 * n + (n + 3) * 2 + n + 1);
  // The last sum of a block that runs again is not made, unless LayerScale's gradient needs it.
  EXPECT_EQ(rows_sent(Recompute::kAll, false, 0), 2 * 11 * n + (n + 3) * 2 + n + 2);
  EXPECT_EQ(rows_sent(Recompute::kAll, true, 0), 2 * 11 * n + (n + 3) * 2 + n + 2);
  EXPECT_EQ(rows_sent(Recompute::kAll, true, 0.5), 2 * 12 * n + (n + 3) * 2 + n + 3);
  EXPECT_EQ(rows_sent(Recompute::kKeepSums, false, 0), 2 * 10 * n + (n + 3) * 2 + n + 1);
  EXPECT_EQ(rows_sent(Recompute::kKeepSums, false, 0.5), 2 * 10 * n + (n + 3) * 2 + n + 1);
}

/// Of a ResMLP's block only the MLP is cut, and all tokens are read: one gather and one sum forward, the same
/// backward; a gather again; and a sum again, which the gradient of LayerScale needs.
TEST(Layouts, ResMlpSendsTheLeast) {
  const auto rows_sent = [](Recompute recompute, bool keep_gathered) {
    return rows_of_a_sample(small_resmlp(), recompute, keep_gathered);
  };
  const int64_t blocks = 3, n = 9;
  EXPECT_EQ(rows_sent(Recompute::kNone, true), blocks * 4 * n);
  EXPECT_EQ(rows_sent(Recompute::kNone, false), blocks * 5 * n);
  EXPECT_EQ(rows_sent(Recompute::kKeepSums, false), blocks * 5 * n);
  EXPECT_EQ(rows_sent(Recompute::kAll, true), blocks * 6 * n);
}

/// What the ranks of a tensor group of 4 send where they hold unequal numbers of samples, in rows of a token.
/// Every layer gathers 9 n + 3 rows of each sample and sums as many (see SendsTheLeast).
TEST(Layouts, UnequalNumbersOfSamplesSendNoPadding) {
  arch::VitConfig config = three_heads();
  config.heads = 4;
  const auto rows_sent = [&](int64_t samples, const char* kind) {
    const Case one{{"", config},
                   4,
                   1,
                   Mix::kAdjacent,
                   Level::kReplicate,
                   0,
                   Recompute::kNone,
                   true,
                   plan::Offload::kNone,
                   1,
                   samples,
                   1,
                   1};
    std::vector<double> rows;
    for (const auto& sent : step_of(input_of(one), plan_of(one)).bytes_sent)
      rows.push_back(static_cast<double>(sent.at(kind)) / (24 * 8));
    return rows;
  };
  using Rows = std::vector<double>;
  const double all = 9 * 10 + 3;  // of a sample
  // 4 samples: 3 of each rank's one, and of its partial sums of the others.
  EXPECT_EQ(rows_sent(4, "gather_rows"), Rows(4, 3 * all));
  EXPECT_EQ(rows_sent(4, "sum_rows"), Rows(4, 3 * all));
  // 1 sample, on rank 3: it leaves that rank once, and 3 ranks send a third to 2. Padded: 3 from every rank.
  EXPECT_EQ(rows_sent(1, "gather_rows"), (Rows{2 * all / 3, 2 * all / 3, 2 * all / 3, all}));
  EXPECT_EQ(rows_sent(1, "sum_rows"), Rows(4, all));
  // 5 samples, 2 on rank 3: each rank sends what it would of 5 / 4 samples, 3 * 5 / 4. Padded: 6.
  EXPECT_EQ(rows_sent(5, "gather_rows"), Rows(4, 3.75 * all));
  EXPECT_EQ(rows_sent(5, "sum_rows"), Rows(4, 4 * all));
}

/// The products of linear layers that all ranks make, by the kernels' announcement.
std::atomic<int64_t> products_made{0};

std::pair<StepResult, int64_t> step_and_products(const Case& one) {
  products_made = 0;
  const auto handle =
      at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function)
                                                           -> std::unique_ptr<at::ObserverContext> {
                              if (std::string_view(function.name()) == "tessera::linear") ++products_made;
                              return nullptr;
                            }).scopes({at::RecordScope::USER_SCOPE}));
  StepResult result = step_of(input_of(one), plan_of(one));
  at::removeCallback(handle);
  return {std::move(result), products_made};
}

Case tensor_2_in_pieces(Recompute recompute, at::ScalarType dtype, int64_t pieces) {
  arch::VitConfig config = three_heads();
  config.dropout = 0;
  config.class_token = false;
  config.pool = arch::Pool::kAverage;
  return {{"average", config},
          2,
          1,
          Mix::kAdjacent,
          Level::kReplicate,
          0,
          recompute,
          true,
          plan::Offload::kNone,
          1,
          8,
          1,
          pieces,
          dtype};
}

/// A second run leaves out the products of sums that it knows, and the gradients are the same bits.
TEST(Layouts, ProductsOfKnownSumsAreNotMadeAgain) {
  for (const int64_t pieces : {1, 2}) {
    const auto [once, products] = step_and_products(tensor_2_in_pieces(Recompute::kNone, at::kFloat, pieces));
    if (products == 0) GTEST_SKIP() << "no fp32 kernels for this CPU";
    const int64_t ranks = 2, blocks = 3;
    // A block: qkv, proj, fc1, fc2. Stem and head are not cut.
    EXPECT_EQ(products, ranks * (4 * blocks * pieces + 2));
    // proj and fc2 have sums. Where these are not kept, nothing reads that of fc2 all the same.
    for (const auto& [recompute, again] :
         {std::pair(Recompute::kKeepSums, 2), std::pair(Recompute::kAll, 3)}) {
      const auto [twice, more] = step_and_products(tensor_2_in_pieces(recompute, at::kFloat, pieces));
      EXPECT_EQ(more - products, ranks * again * blocks * pieces) << to_string(recompute);
      for (const auto& [name, gradient] : once.gradients)
        EXPECT_TRUE(gradient.equal(twice.gradients.at(name))) << name;
    }
  }
}

/// Pieces in bf16 add up weights' gradients in fp32, as one piece does.
TEST(Layouts, PiecesRoundGradientsOfWeightsOnce) {
  const Case whole = tensor_2_in_pieces(Recompute::kNone, at::kBFloat16, 1);
  const StepResult expected = step_of(input_of(whole), plan_of(whole));
  if (!ops::cpu_has_bf16_kernels()) GTEST_SKIP() << "no bf16 kernels for this CPU";
  const Case pieces = tensor_2_in_pieces(Recompute::kNone, at::kBFloat16, 4);
  const StepResult found = step_of(input_of(pieces), plan_of(pieces));
  for (const auto& [name, gradient] : expected.gradients) {
    if (!name.starts_with("blocks.2.") || !name.ends_with(".weight") ||
        name.find("norm") != std::string::npos)
      continue;
    const auto others = found.gradients.at(name).ne(gradient).sum().item<int64_t>();
    EXPECT_LE(static_cast<double>(others), 0.02 * static_cast<double>(gradient.numel())) << name;
  }
}

}  // namespace
}  // namespace tessera::testing
