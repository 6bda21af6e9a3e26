// SPDX-License-Identifier: Apache-2.0
// Whole trainings under layouts with tensor parallelism, each against one rank: every pair of layout, level,
// recompute, model, optimizer and precision. (Gradients in float64: tests/parallel/layouts_test.cpp.)
#include <map>
#include <ostream>

#include "first_difference.h"
#include "small_run.h"
#include "tessera/arch/cut.h"
#include "tessera/base/text.h"
#include "tessera/ops/random_mask.h"
#include "tests/parallel/covering.h"

namespace tessera::train {
namespace {

struct Choice {
  const char* name;
  Sets sets;
  int64_t world = 1;  // of a layout
};

const std::vector<Choice> kRanks = {
    {"tensor_2", {"parallel.tensor=2"}, 2},
    {"tensor_2_data_2", {"parallel.tensor=2"}, 4},
    {"tensor_2_strided_data_2", {"parallel.tensor=2", "parallel.tensor_adjacent=false"}, 4},
    {"tensor_3", {"parallel.tensor=3"}, 3},
    {"tensor_4", {"parallel.tensor=4"}, 4},
    {"tensor_2_data_3", {"parallel.tensor=2", "parallel.tensor_adjacent=false"}, 6},
    {"tensor_4_strided_data_2", {"parallel.tensor=4", "parallel.tensor_adjacent=false"}, 8},
    {"tensor_3_data_3", {"parallel.tensor=3"}, 9},
    {"mixed", {}, 4},
};
// The units' rules of the mixed layout.
constexpr const char* kMixed =
    "blocks.0=LEVEL+tensor2, blocks.1=LEVEL+tensor4, blocks.2=LEVEL+tensor2+strided";

const std::vector<Choice> kLevels = {
    {"replicate", {"replicate"}}, {"zero1", {"zero1"}}, {"zero2", {"zero2"}}, {"zero3", {"zero3"}}};
const std::vector<Choice> kRecompute = {{"kept", {""}},
                                        {"regather", {"+regather"}},
                                        {"recompute", {"+recompute"}},
                                        {"keep_sums", {"+keep_sums"}}};
const std::vector<Choice> kModels = {
    {"class_token", {}},
    {"three_heads_qk_norm_layer_scale", {"model.heads=3", "model.qk_norm=true", "model.layer_scale=0.5"}},
    {"average_registers",
     {"model.class_token=false", "model.pool=gap", "model.registers=2", "train.mixup=0.8"}},
    {"map_pool", {"model.pool=map", "model.heads=1"}},
    {"tanh_head", {"model.head=tanh", "train.accumulation=2"}},
    {"image_uneven", {"train.batch=36", "model.mlp_width=96"}},
    {"no_dropout", {"model.dropout=0", "model.drop_path=0"}},
    {"resmlp", {"model.family=resmlp", "model.layer_scale=0.5"}},
};
const std::vector<Choice> kOptimizers = {
    {"sgd", {"optimizer.name=sgd", "optimizer.lr=1"}},
    {"adamw_layer_decay", {"optimizer.lr=1e-3", "optimizer.layer_decay=0.8"}},
    {"lion_ema", {"optimizer.name=lion", "optimizer.lr=1e-4", "ema.decay=0.9"}},
    {"lamb_offload_all", {"optimizer.name=lamb", "optimizer.lr=1e-3", "shard.offload=all"}},
    {"lars", {"optimizer.name=lars", "optimizer.lr=1"}},
    {"adafactor", {"optimizer.name=adafactor", "optimizer.lr=1e-3"}},
    {"muon_offload", {"optimizer.name=muon", "optimizer.lr=3e-4", "shard.offload=optimizer"}},
};
const std::vector<Choice> kPrecisions = {{"fp32", {}},
                                         {"bf16", {"precision.compute=bf16"}},
                                         {"fp8", {"precision.compute=bf16", "precision.linear=fp8"}}};

struct Case {
  Choice ranks, level, recompute, model, optimizer, precision;
  std::string name() const {
    return concat(ranks.name, "_", level.name, "_", recompute.name, "_", model.name, "_", optimizer.name, "_",
                  precision.name);
  }
  Sets training() const {
    Sets sets = model.sets;
    for (const Choice& choice : {optimizer, precision})
      sets.insert(sets.end(), choice.sets.begin(), choice.sets.end());
    return sets;
  }
  Sets layout() const {
    Sets sets = ranks.sets;
    const std::string rule = level.sets[0] + recompute.sets[0];
    std::string units = concat("blocks.0-2=", rule);
    if (ranks.sets.empty()) {
      units = kMixed;
      for (size_t at = units.find("LEVEL"); at != std::string::npos; at = units.find("LEVEL"))
        units.replace(at, std::string_view("LEVEL").size(), rule);
    }
    sets.push_back(concat("shard.level=", level.sets[0]));
    sets.push_back(concat("shard.units=", units));
    return sets;
  }
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name(); }

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const auto& at : testing::pairwise_cases({kRanks.size(), kLevels.size(), kRecompute.size(),
                                                 kModels.size(), kOptimizers.size(), kPrecisions.size()})) {
    cases.push_back({kRanks[at[0]], kLevels[at[1]], kRecompute[at[2]], kModels[at[3]], kOptimizers[at[4]],
                     kPrecisions[at[5]]});
  }
  return cases;
}

constexpr int64_t kSteps = 20;

Layout layout_of(int64_t world, const Sets& sets) {
  recipe::Recipe recipe = make_recipe(sets);
  plan::Plan plan = make_plan(recipe, world);
  return {concat("ranks=", world, ";", join(sets, ";")), std::move(recipe), std::move(plan)};
}

class TensorTable : public ::testing::TestWithParam<Case> {};

TEST_P(TensorTable, TrainsAsOneRank) {
  const Case& one = GetParam();
  static std::map<Sets, Curve> known;
  const Sets training = joined(one.training(), {concat("train.steps=", kSteps)}),
             with_layout = joined(training, one.layout());
  Curve& expected = known[training];
  if (expected.losses.empty()) expected = train_layout(1, training, kSteps);
  const Curve found = train_layout(one.ranks.world, with_layout, kSteps);
  const std::string precision = one.precision.name;
  const bool narrow = precision != "fp32";
  EXPECT_NEAR(found.losses[0], expected.losses[0], (narrow ? 5e-3 : 2e-6) * expected.losses[0]);
  // Without dropout losses are closer, and rounding changes later gradient norms more: those of one rank that
  // accumulates micro-batches are as far apart (0.04 in bf16, 0.15 in fp8).
  const bool drops = std::string(one.model.name) != "no_dropout";
  const double curve = narrow                                     ? (drops ? 2e-2 : 5e-3)
                       : std::string(one.optimizer.name) == "sgd" ? 5e-6
                                                                  : 5e-5;
  const double norm = precision == "fp8" ? 4e-2 : narrow ? 2e-2 : 2e-4;
  const double later_norm = drops || !narrow ? norm : precision == "fp8" ? 0.3 : 0.1;
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(found.losses[i], expected.losses[i], curve * expected.losses[i]) << "loss of step " << i;
    EXPECT_NEAR(found.norms[i], expected.norms[i], (i < 4 ? norm : later_norm) * expected.norms[i])
        << "gradient norm of step " << i;
  }
  if (!HasFailure()) return;
  CompareOptions options;
  options.steps = kSteps;
  ADD_FAILURE() << first_difference(layout_of(1, training), layout_of(one.ranks.world, with_layout), options);
}

INSTANTIATE_TEST_SUITE_P(Pairs, TensorTable, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name(); });

Case zero3_over(const Choice& ranks) {
  return {ranks, kLevels[3], kRecompute[0], kModels[0], kOptimizers[0], kPrecisions[0]};
}

// Initial weights and the samples of every step do not depend on the layout.
TEST(TensorLayouts, InitialWeightsAndSamplesAreOneRanks) {
  const Layout single = layout_of(1, {});
  CompareOptions options;
  options.steps = 4;  // two epochs
  Log quiet(false);
  for (const Choice& ranks : kRanks) {
    const Layout layout = layout_of(ranks.world, zero3_over(ranks).layout());
    SCOPED_TRACE(layout.text);
    size_t exact = 0;
    for (const TensorDifference& one : compare_layouts(single, layout, options, quiet).report.tensors) {
      if (!one.exact) continue;
      ++exact;
      EXPECT_FALSE(one.differs) << text_of(one, /*float64=*/false);
    }
    EXPECT_EQ(exact, arch::parameters(single.recipe.model).size() + static_cast<size_t>(options.steps));
  }
}

// What ranks drop of their hidden units is what one rank drops there, bit by bit.
TEST(TensorLayouts, DropoutMasksAreOneRanks) {
  const std::vector<uint64_t> samples = {7, 3, 1'000'000'007};
  const int64_t rows = 5, hidden = 160;
  const at::Tensor whole = ops::dropout_mask(0.3, 11, samples, rows * hidden, at::kFloat)
                               .view({static_cast<int64_t>(samples.size()), rows, hidden});
  for (const int64_t degree : {2, 3, 4, 7}) {
    std::vector<at::Tensor> parts;
    for (int64_t rank = 0; rank < degree; ++rank) {
      const DimRange mine = arch::hidden_range(hidden, degree, rank);
      if (mine.size() == 0) continue;
      parts.push_back(
          ops::dropout_mask_columns(0.3, 11, samples, rows, {mine.begin, mine.size(), hidden}, at::kFloat));
    }
    EXPECT_TRUE(at::cat(parts, 2).equal(whole)) << degree << " ranks";
  }
}

}  // namespace
}  // namespace tessera::train
