// SPDX-License-Identifier: Apache-2.0
// Pipelines, joined with every other layout, against one rank: every pair of schedule, tensor and data
// parallelism, level, recompute, model and optimizer.
#include <ostream>

#include "small_run.h"
#include "tessera/train/compare_layouts.h"
#include "tests/parallel/covering.h"

namespace tessera::train {
namespace {

struct Choice {
  const char* name;
  Sets sets;
  int64_t ranks = 1;  // of a stage, or stages
};

const std::vector<Choice> kPipelines = {
    {"gpipe_2_m1", {"parallel.pipeline=2", "parallel.schedule=gpipe", "parallel.micro_batches=1"}, 2},
    {"1f1b_2_m2", {"parallel.pipeline=2", "parallel.micro_batches=2"}, 2},
    {"1f1b_2_m4_stem_alone",
     {"parallel.pipeline=2", "parallel.micro_batches=4", "parallel.stages=[0, 4]"},
     2},
    {"gpipe_3_m4",
     {"parallel.pipeline=3", "parallel.schedule=gpipe", "parallel.micro_batches=4",
      "parallel.stages=[1, 2, 1]"},
     3},
    {"1f1b_3_m6_head_alone",
     {"parallel.pipeline=3", "parallel.micro_batches=6", "parallel.stages=[2, 2, 0]"},
     3},
    {"1f1b_2_m3_ahead", {"parallel.pipeline=2", "parallel.micro_batches=3", "parallel.ahead=1"}, 2},
    {"1f1b_3_m6_ahead", {"parallel.pipeline=3", "parallel.micro_batches=6", "parallel.ahead=1"}, 3},
    {"1f1b_3_m2", {"parallel.pipeline=3", "parallel.micro_batches=2"}, 3},
    {"interleaved_2_m4",
     {"parallel.pipeline=2", "parallel.schedule=interleaved", "parallel.virtual_stages=2",
      "parallel.micro_batches=4", "parallel.stages=[1, 1, 1, 1]"},
     2},
    {"interleaved_2_m2_parts_3",
     {"parallel.pipeline=2", "parallel.schedule=interleaved", "parallel.virtual_stages=3",
      "parallel.micro_batches=2"},
     2},
    {"interleaved_3_m3",
     {"parallel.pipeline=3", "parallel.schedule=interleaved", "parallel.virtual_stages=2",
      "parallel.micro_batches=3"},
     3},
};
const std::vector<Choice> kRanks = {
    {"data_1", {}, 1},
    {"data_2", {}, 2},
    {"tensor_2", {"parallel.tensor=2"}, 2},
    {"tensor_2_data_2", {"parallel.tensor=2"}, 4},
    {"tensor_2_strided_data_2", {"parallel.tensor=2", "parallel.tensor_adjacent=false"}, 4},
    {"mixed", {}, 4},
};
constexpr const char* kMixed =
    "blocks.0=LEVEL+tensor2, blocks.1=LEVEL+tensor4, blocks.2=LEVEL, blocks.3=LEVEL+tensor2+strided";

const std::vector<Choice> kLevels = {
    {"replicate", {"replicate"}}, {"zero1", {"zero1"}}, {"zero2", {"zero2"}}, {"zero3", {"zero3"}}};
const std::vector<Choice> kRecompute = {
    {"kept", {""}}, {"recompute", {"+recompute"}}, {"keep_sums", {"+keep_sums"}}};
const std::vector<Choice> kModels = {
    {"class_token_mixup", {"train.mixup=0.8"}},
    {"three_heads_qk_norm_layer_scale", {"model.heads=3", "model.qk_norm=true", "model.layer_scale=0.5"}},
    {"average_registers", {"model.class_token=false", "model.pool=gap", "model.registers=2"}},
    {"map_pool", {"model.pool=map", "model.heads=1"}},
    {"tanh_head_frozen",
     {"model.head=tanh", "optimizer.groups=[\"patch_embed.*: freeze\", \"blocks.0.*: freeze\"]"}},
    {"short_last_step", {"train.batch=48", "data.source=fake:60", "data.remainder=keep"}},
};
const std::vector<Choice> kOptimizers = {
    {"sgd", {"optimizer.name=sgd"}},
    {"adamw_layer_decay", {"optimizer.layer_decay=0.8"}},
    {"lion_ema", {"optimizer.name=lion", "optimizer.lr=1e-3", "ema.decay=0.9"}},
    {"lamb", {"optimizer.name=lamb"}},
    {"lars", {"optimizer.name=lars"}},
    {"adafactor", {"optimizer.name=adafactor"}},
    {"muon_offload", {"optimizer.name=muon", "shard.offload=optimizer"}},
};
const std::vector<Choice> kPrecisions = {{"fp32", {}},
                                         {"bf16", {"precision.compute=bf16"}},
                                         {"fp8", {"precision.compute=bf16", "precision.linear=fp8"}}};

struct Case {
  Choice pipeline, ranks, level, recompute, model, optimizer, precision;

  std::string name() const {
    return concat(pipeline.name, "_", ranks.name, "_", level.name, "_", recompute.name, "_", model.name, "_",
                  optimizer.name, "_", precision.name);
  }
  int64_t world() const { return pipeline.ranks * ranks.ranks; }
  Sets training() const {
    return joined(joined(joined({"model.depth=4"}, model.sets), optimizer.sets), precision.sets);
  }
  Sets layout() const {
    Sets sets = joined(pipeline.sets, ranks.sets);
    const bool is_mixed = std::string(ranks.name) == "mixed", is_cut = is_mixed || ranks.sets.size() > 0;
    std::string recomputed = recompute.sets[0];
    if (!is_cut && recomputed == "+keep_sums") recomputed = "+recompute";  // there are no sums
    const std::string rule = level.sets[0] + recomputed;
    std::string units = concat("blocks.0-3=", rule);
    if (is_mixed) {
      units = kMixed;
      const std::string whole = "LEVEL, ";  // of the block that is not cut
      units.replace(units.find(whole), whole.size() - 2,
                    level.sets[0] + (recomputed.empty() ? "" : "+recompute"));
      for (size_t at = units.find("LEVEL"); at != std::string::npos; at = units.find("LEVEL"))
        units.replace(at, std::string_view("LEVEL").size(), rule);
    }
    return joined(sets, {concat("shard.level=", level.sets[0]), concat("shard.units=", units)});
  }
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name(); }

/// `precisions`: how many of them.
std::vector<Case> cases(size_t precisions) {
  std::vector<Case> all;
  for (const auto& at :
       testing::pairwise_cases({kPipelines.size(), kRanks.size(), kLevels.size(), kRecompute.size(),
                                kModels.size(), kOptimizers.size(), precisions})) {
    all.push_back({kPipelines[at[0]], kRanks[at[1]], kLevels[at[2]], kRecompute[at[3]], kModels[at[4]],
                   kOptimizers[at[5]], kPrecisions[at[6]]});
  }
  return all;
}

/// The gradient of a key's bias is zero but for rounding. Adam and its like make whole steps of that, which
/// change nothing else.
bool is_rounding(const std::string& title) {
  const bool is_bias =
      title.find("qkv.bias") != std::string::npos || title.find("k_norm.bias") != std::string::npos;
  return is_bias && title.ends_with("after the step");
}

/// What no pair above has: hybrid sharding and offload within a stage, 3 stages with 1 and 5 micro-batches,
/// and everything at once.
std::vector<Case> chosen_cases() {
  const Choice plain = {"plain", {}}, adamw = {"adamw", {}}, fp32 = kPrecisions[0], kept = kRecompute[0],
               recompute = kRecompute[1], zero1 = kLevels[1], zero2 = kLevels[2], zero3 = kLevels[3];
  const Choice one_f_one_b = {"1f1b_2_m4", {"parallel.pipeline=2", "parallel.micro_batches=4"}, 2},
               interleaved = kPipelines[8], data_1 = kRanks[0], tensor_2_data_2 = kRanks[3];
  const Choice hybrid = {"shard_ranks_2_of_4", {"shard.ranks=2"}, 4},
               hybrid_of_tensor_groups = {
                   "tensor_2_shard_ranks_1_of_2", {"parallel.tensor=2", "shard.ranks=1"}, 4};
  const Choice offload = {"data_2_offload_all", {"shard.offload=all"}, 2};
  const auto three = [](const char* name, const char* schedule, int64_t micro_batches) {
    return Choice{name,
                  {"parallel.pipeline=3", concat("parallel.schedule=", schedule),
                   concat("parallel.micro_batches=", micro_batches)},
                  3};
  };
  return {
      {one_f_one_b, hybrid, zero3, kept, plain, adamw, fp32},
      {one_f_one_b, hybrid, zero2, recompute, plain, adamw, fp32},
      {interleaved, hybrid, zero1, kept, plain, adamw, fp32},
      {one_f_one_b, hybrid_of_tensor_groups, zero3, kept, plain, adamw, fp32},
      {one_f_one_b, offload, zero3, recompute, plain, adamw, fp32},
      {interleaved, offload, zero1, kept, plain, adamw, fp32},
      {one_f_one_b, tensor_2_data_2, zero3, recompute, {"dropout", {"model.dropout=0.3"}}, adamw, fp32},
      {three("1f1b_3_m1", "1f1b", 1), data_1, zero3, kept, plain, adamw, fp32},
      {three("1f1b_3_m5", "1f1b", 5), data_1, zero3, kept, plain, adamw, fp32},
      {three("gpipe_3_m1", "gpipe", 1), data_1, zero3, kept, plain, adamw, fp32},
      {three("gpipe_3_m5", "gpipe", 5), data_1, zero3, kept, plain, adamw, fp32},
  };
}

class PipelineInFloat64 : public ::testing::TestWithParam<Case> {};

// Samples, every segment's outputs, every gradient, the weights after each step: 1e-11. Steps of a short last
// batch have micro-batches without samples.
TEST_P(PipelineInFloat64, ComputesWhatOneRankDoes) {
  const Case& one = GetParam();
  at::set_num_threads(1);
  const auto layout_of = [&](int64_t world, const Sets& layout) {
    const recipe::Recipe recipe =
        make_recipe(joined(joined(one.training(), layout), {"schedule.warmup_steps=0"}));
    return Layout{concat("ranks=", world), recipe, make_plan(recipe, world)};
  };
  CompareOptions options;
  options.float64 = true;
  options.steps = 2;
  Log log(false);
  const LayoutComparison found =
      compare_layouts(layout_of(1, {}), layout_of(one.world(), one.layout()), options, log);
  for (const TensorDifference& tensor : found.report.tensors) {
    EXPECT_TRUE(!tensor.differs || is_rounding(tensor.title))
        << tensor.title << ": " << tensor.a << " and " << tensor.b << tensor.fault;
  }
  EXPECT_GT(found.report.tensors.size(), 100U);
  EXPECT_TRUE(found.notes.empty()) << found.notes.front();
}

INSTANTIATE_TEST_SUITE_P(Pairs, PipelineInFloat64, ::testing::ValuesIn(cases(1)),
                         [](const auto& info) { return info.param.name(); });
INSTANTIATE_TEST_SUITE_P(Chosen, PipelineInFloat64, ::testing::ValuesIn(chosen_cases()),
                         [](const auto& info) { return info.param.name(); });

constexpr int64_t kSteps = 4;

class PipelineTable : public ::testing::TestWithParam<Case> {};

TEST_P(PipelineTable, TrainsAsOneRank) {
  const Case& one = GetParam();
  static std::map<Sets, Curve> known;
  Curve& expected = known[one.training()];
  if (expected.losses.empty()) expected = train_layout(1, one.training(), kSteps);
  const Curve found = train_layout(one.world(), joined(one.training(), one.layout()), kSteps);
  const bool narrow = std::string(one.precision.name) != "fp32";
  EXPECT_NEAR(found.losses[0], expected.losses[0], (narrow ? 5e-3 : 2e-6) * expected.losses[0]);
  const double curve = narrow ? 2e-2 : std::string(one.optimizer.name) == "sgd" ? 5e-6 : 5e-5;
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(found.losses[i], expected.losses[i], curve * expected.losses[i]) << "loss of step " << i;
    const double norm = (narrow ? 2e-2 : 2e-4) * (i + 1);
    EXPECT_NEAR(found.norms[i], expected.norms[i], norm * expected.norms[i]) << "gradient norm of step " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Pairs, PipelineTable, ::testing::ValuesIn(cases(kPrecisions.size())),
                         [](const auto& info) { return info.param.name(); });
INSTANTIATE_TEST_SUITE_P(Chosen, PipelineTable, ::testing::ValuesIn(chosen_cases()),
                         [](const auto& info) { return info.param.name(); });

// Images that no whole batch holds, and more ranks than images in the last one: each counts once, on the last
// stage; rank 0, which has no logits, gets the figures and the images to show.
TEST(PipelineEvaluation, CountsEverySampleOnce) {
  std::vector<double> losses;
  std::vector<std::vector<int64_t>> worst;
  std::vector<std::vector<std::vector<uint8_t>>> shown;
  for (const auto& [world, sets] :
       std::vector<std::pair<int64_t, Sets>>{{1, {}},
                                             {2, {"parallel.pipeline=2"}},
                                             {3, {"parallel.pipeline=3"}},
                                             {4, {"parallel.pipeline=2", "parallel.tensor=2"}},
                                             {4,
                                              {"parallel.pipeline=2", "parallel.schedule=interleaved",
                                               "parallel.virtual_stages=2", "parallel.micro_batches=2"}}}) {
    const recipe::Recipe recipe = make_recipe(joined({"data.source=fake:101"}, sets));
    run_plan_ranks(recipe, world, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
      const auto state = assemble(recipe, plan, mesh, false);
      const Evaluation result =
          evaluate_validation(*state, mesh, {.batch = 8, .keep_samples = 12, .keep_mistakes = 10});
      EXPECT_EQ(result.metrics.samples, 101);
      if (mesh.rank() != 0) return;
      losses.push_back(result.metrics.loss);
      std::vector<int64_t> mistakes;
      std::vector<std::vector<uint8_t>> samples;
      for (const auto& mistake : result.mistakes) mistakes.push_back(mistake.sample);
      for (const auto& sample : result.samples) samples.push_back(sample.pixels);
      EXPECT_EQ(samples.size(), 12U);
      worst.push_back(mistakes);
      shown.push_back(samples);
    });
  }
  for (size_t i = 1; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], losses[0], 1e-6);
    EXPECT_EQ(worst[i], worst[0]);
    EXPECT_EQ(shown[i], shown[0]);
  }
}

}  // namespace
}  // namespace tessera::train
