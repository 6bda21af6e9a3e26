// SPDX-License-Identifier: Apache-2.0
// Every gradient of a step, whatever the layout, against one rank's in float64.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <ostream>

#include "tessera/base/error.h"
#include "tests/parallel/covering.h"
#include "tests/parallel/one_step.h"

namespace tessera::testing {
namespace {

using plan::Level;
using plan::Recompute;

constexpr double kExact = 1e-11;

arch::VitConfig small_vit() {
  arch::VitConfig config;
  config.image_size = 12;
  config.patch_size = 4;
  config.width = 24;
  config.depth = 3;
  config.heads = 3;
  config.mlp_width = 96;
  config.classes = 5;
  config.dropout = 0.1;
  return config;
}

/// What models have, in few models.
struct NamedConfig {
  const char* name;
  arch::ModelConfig config;
};

std::vector<NamedConfig> configs() {
  std::vector<NamedConfig> all = {{"class_token_dropout", small_vit()}};
  arch::VitConfig vit = small_vit();
  vit.class_token = false;
  vit.pool = arch::Pool::kAverage;
  vit.layer_scale = 0.5;
  vit.drop_path = 0.3;
  vit.dropout = 0;
  vit.qk_norm = true;
  vit.mlp_width = 100;  // 25 groups of 4
  all.push_back({"average_layerscale_droppath_qknorm", vit});
  vit = small_vit();
  vit.pool = arch::Pool::kAttention;
  vit.registers = 2;
  vit.head = arch::Head::kTanh;
  vit.dropout = 0;
  all.push_back({"map_registers_tanh", vit});
  vit = small_vit();
  vit.distillation_token = true;
  vit.qk_norm = true;
  vit.drop_path = 0.2;
  all.push_back({"distillation_qknorm", vit});
  vit = small_vit();
  vit.dropout = 0;
  vit.heads = 1;
  vit.mlp_width = 32;  // one rank has all of either
  all.push_back({"one_head", vit});
  arch::ResMlpConfig resmlp;
  resmlp.image_size = 12;
  resmlp.patch_size = 4;
  resmlp.width = 24;
  resmlp.depth = 3;
  resmlp.mlp_width = 96;
  resmlp.classes = 5;
  resmlp.layer_scale = 0.5;
  resmlp.drop_path = 0.2;
  all.push_back({"resmlp", resmlp});
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
  plan::Offload offload;
  int64_t prefetch, samples, micro_batches;

  int64_t world() const { return tensor * data; }
};

const char* text(Mix mix) {
  return mix == Mix::kAdjacent ? "adjacent" : mix == Mix::kStrided ? "strided" : "mixed";
}

std::string text(const Case& one) {
  return concat(one.model.name, ", tensor ", one.tensor, " x data ", one.data, ", ", text(one.mix), ", ",
                to_string(one.level), one.shard > 0 ? "+ranks" : "", one.shard > 0 ? concat(one.shard) : "",
                ", recompute ", to_string(one.recompute), ", offload ", to_string(one.offload), ", prefetch ",
                one.prefetch, ", ", one.samples, " samples, ", one.micro_batches, " micro-batches");
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
    unit.recompute = one.recompute;
  }
  return plan;
}

StepInput input_of(const Case& one) {
  return {.config = one.model.config, .samples = one.samples, .micro_batches = one.micro_batches};
}

StepResult alone(const StepInput& input) {
  return step_of(input, plan::uniform_plan(input.config, 1, Level::kReplicate, false, 1));
}

void expect_one_ranks(const Case& one) {
  SCOPED_TRACE(text(one));
  const StepInput input = input_of(one);
  const StepResult expected = alone(input), found = step_of(input, plan_of(one));
  EXPECT_NEAR(found.loss, expected.loss, kExact * expected.loss);
  const double norm = std::sqrt(expected.square_sum);
  EXPECT_NEAR(std::sqrt(found.square_sum), norm, kExact * norm);
  EXPECT_LE(gradient_difference(input.config, found, expected), kExact);
}

/// Pairs of everything that may be together.
std::vector<Case> all_cases() {
  const auto models = configs();
  const std::vector<std::pair<int64_t, int64_t>> ranks = {{2, 1}, {2, 2}, {3, 1}, {4, 1},
                                                          {2, 3}, {3, 2}, {1, 2}};
  const std::vector<Mix> mixes = {Mix::kAdjacent, Mix::kStrided, Mix::kMixed};
  const std::vector<std::pair<Level, int64_t>> levels = {
      {Level::kReplicate, 0}, {Level::kZero1, 0}, {Level::kZero2, 0}, {Level::kZero3, 0}, {Level::kZero3, 2}};
  const std::vector<Recompute> recompute = {Recompute::kNone, Recompute::kAll};
  const std::vector<plan::Offload> offload = {plan::Offload::kNone, plan::Offload::kOptimizer,
                                              plan::Offload::kAll};
  const std::vector<int64_t> prefetch = {0, 1, 2};
  // Even, uneven, and fewer than the ranks.
  const std::vector<std::pair<int64_t, int64_t>> samples = {{12, 1}, {7, 2}, {1, 1}, {3, 3}};
  std::vector<Case> cases;
  for (const auto& at : pairwise_cases({models.size(), ranks.size(), mixes.size(), levels.size(),
                                        recompute.size(), offload.size(), prefetch.size(), samples.size()})) {
    cases.push_back({models[at[0]], ranks[at[1]].first, ranks[at[1]].second, mixes[at[2]],
                     levels[at[3]].first, levels[at[3]].second, recompute[at[4]], offload[at[5]],
                     prefetch[at[6]], samples[at[7]].first, samples[at[7]].second});
  }
  return cases;
}

class CoveringTable : public ::testing::TestWithParam<Case> {};

TEST_P(CoveringTable, EqualsOneRank) { expect_one_ranks(GetParam()); }

void PrintTo(const Case& one, std::ostream* out) { *out << text(one); }

INSTANTIATE_TEST_SUITE_P(Float64, CoveringTable, ::testing::ValuesIn(all_cases()));

/// The one that everything began with.
TEST(Layouts, TwoTensorRanksTimesTwoOfData) {
  expect_one_ranks({configs()[0], 2, 2, Mix::kAdjacent, Level::kZero3, 0, Recompute::kNone,
                    plan::Offload::kNone, 1, 8, 1});
}

}  // namespace
}  // namespace tessera::testing
