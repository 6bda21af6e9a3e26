// SPDX-License-Identifier: Apache-2.0
// Layouts that compute the same agree; a fault in one of them is named with tensor, element and both values.
#include "tessera/train/compare_layouts.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <mutex>

#include "../error_text.h"
#include "small_run.h"
#include "tessera/arch/cut.h"
#include "tessera/base/file.h"
#include "tessera/models/segmented_model.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr double kEndless = std::numeric_limits<double>::infinity();

/// Every step has a learning rate.
MakeRecipe recipe_with(const std::vector<std::string>& sets = {}) {
  return [sets](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"schedule.warmup_steps=0"};
    all.insert(all.end(), sets.begin(), sets.end());
    all.insert(all.end(), more.begin(), more.end());
    return make_recipe(all);
  };
}

LayoutComparison compare(const std::string& a, const std::string& b, const CompareOptions& options = {},
                         const std::vector<std::string>& sets = {}) {
  Log log(false);
  return compare_layouts(read_layout(a, recipe_with(sets)), read_layout(b, recipe_with(sets)), options, log);
}

CompareOptions in_float64(StepHook hook_b = {}) {
  CompareOptions options;
  options.float64 = true;
  options.hook_b = std::move(hook_b);
  return options;
}

/// A plan file, for as long as this lives.
class SavedPlan {
 public:
  explicit SavedPlan(const plan::Plan& plan)
      : path_(fs::temp_directory_path() / concat("tessera-plan-", ::getpid(), ".json")) {
    write_file_atomic(path_, plan::to_json(plan));
  }
  ~SavedPlan() { fs::remove(path_); }
  SavedPlan(const SavedPlan&) = delete;
  SavedPlan& operator=(const SavedPlan&) = delete;
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

/// Blocks cut over 2 ranks.
plan::Plan tensor_plan(int64_t world, plan::Level level) {
  plan::Plan plan = plan::uniform_plan(make_recipe().model, world, level, false, 1);
  for (plan::UnitPlan& unit : plan.units) {
    if (unit.name.starts_with("blocks.")) unit.layout.tensor = 2;
  }
  return plan;
}

/// Samples, 5 outputs (stem, 3 blocks, head), loss, gradient norm; weights before and after, gradients.
size_t tensors_of_a_step() {
  size_t parameters = 0;
  for (const auto& spec : arch::parameters(make_recipe().model)) parameters += spec.buffer ? 0 : 1;
  return 1 + 5 + 1 + 1 + 3 * parameters;
}

void expect_agreement(const LayoutComparison& found, double tolerance) {
  const TensorDifference* first = found.report.first_difference();
  EXPECT_EQ(first, nullptr) << first->title << " " << first->a << " " << first->b << " " << first->fault;
  EXPECT_EQ(found.report.tensors.size(), tensors_of_a_step());
  EXPECT_EQ(found.report.differing(), 0);
  ASSERT_NE(found.report.largest(), nullptr);
  EXPECT_LE(found.report.largest()->largest, tolerance);
}

TEST(CompareLayouts, RanksAndLevelsAgreeInFloat64) {
  for (const char* other :
       {"ranks=2,shard.level=replicate", "ranks=4,shard.level=zero3,shard.recompute=true",
        "ranks=4;shard.ranks=2; shard.units=blocks.0=zero2, head=replicate", "ranks=2,train.batch_per_rank=8",
        "ranks=4,parallel.tensor=2,parallel.tensor_adjacent=false",
        "ranks=2;shard.units=blocks.0=tensor2, blocks.1=tensor2+strided+keep_sums"}) {
    SCOPED_TRACE(other);
    expect_agreement(compare("ranks=1", other, in_float64()), 1e-11);
  }
}

TEST(CompareLayouts, TensorParallelPlanFilesAgreeInFloat64) {
  for (const int64_t world : {2, 4}) {
    const SavedPlan file(tensor_plan(world, plan::Level::kZero3));
    expect_agreement(compare("ranks=1", file.path(), in_float64()), 1e-11);
  }
}

TEST(CompareLayouts, EveryOptimizerAgreesInFloat64) {
  for (const char* name : {"sgd", "adam", "lion", "lamb", "lars", "adafactor", "muon"}) {
    for (const char* other : {"ranks=3", "ranks=4,parallel.tensor=2"}) {
      SCOPED_TRACE(concat(name, " ", other));
      expect_agreement(compare("ranks=1", other, in_float64(), {concat("optimizer.name=", name)}), 1e-11);
    }
  }
}

TEST(CompareLayouts, RecipesPrecisionAgreesWithinItsTolerance) {
  const SavedPlan file(tensor_plan(2, plan::Level::kZero2));
  for (const std::string& other : {std::string("ranks=4"), file.path()}) {
    const LayoutComparison found = compare("ranks=1", other);
    EXPECT_EQ(found.precision, "fp32");
    EXPECT_EQ(found.report.tolerance, 1e-5);
    expect_agreement(found, 1e-5);
  }
}

TEST(CompareLayouts, EveryStepIsCompared) {
  CompareOptions options = in_float64();
  options.steps = 3;
  const LayoutComparison found = compare("ranks=1", "ranks=2", options);
  EXPECT_EQ(found.report.first_difference(), nullptr);
  const auto& tensors = found.report.tensors;
  EXPECT_EQ(std::ranges::count(tensors, "step 3: loss", &TensorDifference::title), 1);
  EXPECT_EQ(std::ranges::count_if(tensors,
                                  [](const auto& one) { return one.title.starts_with("step 2: samples"); }),
            1);
}

LayoutComparison compare_resnet(const std::string& a, const std::string& b,
                                const CompareOptions& options = {}) {
  const MakeRecipe recipe = [](const std::vector<std::string>& sets) { return resnet_recipe(sets); };
  Log log(false);
  return compare_layouts(read_layout(a, recipe), read_layout(b, recipe), options, log);
}

TEST(CompareLayouts, RunningStatisticsOfBatchNormAgreeWhereRanksShareThem) {
  const LayoutComparison found =
      compare_resnet("ranks=1,model.batch_norm_sync=true", "ranks=2,model.batch_norm_sync=true");
  const auto& tensors = found.report.tensors;
  EXPECT_EQ(std::ranges::count(tensors, "bn1.running_mean after the step", &TensorDifference::title), 1);
  const TensorDifference* first = found.report.first_difference();
  EXPECT_EQ(first, nullptr) << first->title << " " << first->a << " " << first->b << " " << first->largest;
  EXPECT_TRUE(found.notes.empty() || found.notes[0].starts_with("the learning rate")) << found.notes[0];
}

TEST(CompareLayouts, BatchNormOverOtherSamplesIsNoted) {
  const LayoutComparison found = compare_resnet("ranks=1", "ranks=2");
  ASSERT_NE(found.report.first_difference(), nullptr);
  EXPECT_EQ(found.report.first_difference()->title, "output of stem");
  ASSERT_FALSE(found.notes.empty());
  EXPECT_EQ(found.notes[0],
            "BatchNorm takes its statistics over 24 samples under A and 12 under B, so outputs differ "
            "without a fault");
}

/// A value added to one element of the shard that a rank holds of a parameter. What the ranks' shards hold
/// follows from the plan, so the test looks it up where it is changed.
class Fault {
 public:
  Fault(std::string parameter, int64_t rank, StepPoint point)
      : name_(std::move(parameter)), rank_(rank), point_(point) {}

  StepHook hook() {
    return [this](StepPoint point, eager::TrainState& state) {
      if (point != point_ || state.rank != rank_ || state.step > 0) return;
      const at::NoGradGuard no_grad;
      for (const auto& unit : state.sharded->units()) {
        for (const shard::Shard& shard : unit->shards()) {
          if (shard.name == name_) change(shard);
        }
      }
      if (point != StepPoint::kGradients) state.sharded->parameters_changed();
    };
  }
  void add(double value) { value_ = value; }

  double before = 0;           // of the element
  std::vector<int64_t> index;  // of the element in the whole tensor

 private:
  void change(const shard::Shard& shard) {
    const at::Tensor values = point_ == StepPoint::kGradients ? shard.gradient : shard.master;
    const int64_t last = values.numel() - 1;
    ASSERT_GE(last, 0);
    before = values[last].item<double>();
    values[last] = before + value_;
    const Region& region = shard.regions.back();
    int64_t element = region.end - 1;  // within the box
    index.resize(shard.shape.size());
    for (size_t dim = shard.shape.size(); dim-- > 0; element /= region.box.dims[dim].size())
      index[dim] = region.box.dims[dim].begin + element % region.box.dims[dim].size();
  }

  const std::string name_;
  const int64_t rank_;
  const StepPoint point_;
  double value_ = 0.5;
};

TEST(CompareLayouts, NamesAFaultyGradient) {
  Fault fault("blocks.1.mlp.fc1.weight", 1, StepPoint::kGradients);
  const LayoutComparison found = compare("ranks=1", "ranks=2", in_float64(fault.hook()));
  const TensorDifference* first = found.report.first_difference();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->title, "gradient of blocks.1.mlp.fc1.weight");
  EXPECT_EQ(first->index, fault.index);
  EXPECT_NEAR(first->a, fault.before, 1e-12);
  EXPECT_EQ(first->b, fault.before + 0.5);
  // The weight that it updates differs as well; its wrong update is explained by its gradient.
  EXPECT_EQ(found.report.differing(), 1);
}

/// Of a tensor of which a rank has some columns, or some rows of each third.
TEST(CompareLayouts, NamesAFaultyGradientOfACutTensor) {
  for (const char* name : {"blocks.1.attn.qkv.weight", "blocks.1.mlp.fc2.weight"}) {
    for (const int64_t rank : {0, 1}) {
      SCOPED_TRACE(concat(name, ", rank ", rank));
      Fault fault(name, rank, StepPoint::kGradients);
      const LayoutComparison found =
          compare("ranks=1", "ranks=2,parallel.tensor=2", in_float64(fault.hook()));
      const TensorDifference* first = found.report.first_difference();
      ASSERT_NE(first, nullptr);
      EXPECT_EQ(first->title, concat("gradient of ", name));
      const auto specs = arch::parameters(make_recipe().model);
      const auto spec = std::ranges::find(specs, name, &arch::ParameterSpec::name);
      const std::vector<Box> held = arch::boxes_of(*spec, 2, rank);
      std::vector<int64_t> last;  // element of what the rank holds
      for (const DimRange& dim : held.back().dims) last.push_back(dim.end - 1);
      EXPECT_EQ(first->index, last);
      EXPECT_NEAR(first->a, fault.before, 1e-12);
      EXPECT_EQ(first->b, fault.before + 0.5);
      EXPECT_EQ(found.report.differing(), 1);
    }
  }
}

/// Of two faults the one that a step computes first: gradients come from the head to the stem.
TEST(CompareLayouts, TheFirstGradientInBackwardIsNamed) {
  Fault early("pos_embed", 1, StepPoint::kGradients), late("blocks.2.norm1.weight", 1, StepPoint::kGradients);
  const StepHook one = early.hook(), other = late.hook();
  const LayoutComparison found =
      compare("ranks=1", "ranks=2", in_float64([&](StepPoint point, eager::TrainState& state) {
                one(point, state);
                other(point, state);
              }));
  ASSERT_NE(found.report.first_difference(), nullptr);
  EXPECT_EQ(found.report.first_difference()->title, "gradient of blocks.2.norm1.weight");
  EXPECT_EQ(found.report.differing(), 2);
}

TEST(CompareLayouts, NamesAFaultyInitialWeight) {
  Fault fault("head.weight", 1, StepPoint::kBegin);
  fault.add(1e-3);
  const LayoutComparison found = compare("ranks=1", "ranks=2", in_float64(fault.hook()));
  const TensorDifference* first = found.report.first_difference();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->title, "initial value of head.weight");
  EXPECT_EQ(first->index, fault.index);
  EXPECT_EQ(first->a, fault.before);
  EXPECT_EQ(first->b, fault.before + 1e-3);
}

/// The bias of the last class changes that class's logit of every sample by as much.
TEST(CompareLayouts, NamesAFaultyOutput) {
  Fault fault("head.bias", 1, StepPoint::kForward);
  fault.add(0.25);
  const LayoutComparison found = compare("ranks=1", "ranks=2", in_float64(fault.hook()));
  const TensorDifference* first = found.report.first_difference();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->title, "output of head");
  ASSERT_EQ(first->index.size(), 2U);
  EXPECT_EQ(first->index[1], fault.index[0]);
  EXPECT_NEAR(first->b - first->a, 0.25, 1e-13);
}

TEST(CompareLayouts, NamesNonFiniteValuesAndSaysThatTrainingStops) {
  Fault fault("head.bias", 1, StepPoint::kForward);
  fault.add(kEndless);
  const LayoutComparison found = compare("ranks=1", "ranks=2", in_float64(fault.hook()));
  const TensorDifference* first = found.report.first_difference();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->title, "output of head");
  EXPECT_EQ(first->b, kEndless);
  EXPECT_EQ(first->largest, kEndless);
  ASSERT_EQ(found.notes.size(), 1U);
  EXPECT_TRUE(found.notes[0].starts_with("layout B: [train.step] ")) << found.notes[0];
  EXPECT_EQ(found.report.tensors.back().fault, "only layout A computes it");  // no weights after the step
}

TEST(CompareLayouts, NamesReplicasThatDiffer) {
  Fault fault("norm.bias", 1, StepPoint::kBegin);
  const LayoutComparison found =
      compare("ranks=1", "ranks=2,shard.level=replicate", in_float64(fault.hook()));
  const TensorDifference* first = found.report.first_difference();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->title, "initial value of norm.bias");
  EXPECT_EQ(first->fault.substr(0, 10), "layout B: ") << first->fault;
  EXPECT_NE(first->fault.find("1 other value"), std::string::npos) << first->fault;
}

TEST(CompareLayouts, SettingsThatChangeTheComputationAreFound) {
  const auto first_of = [](const std::string& b) {
    const LayoutComparison found = compare("ranks=1", b, in_float64());
    const TensorDifference* first = found.report.first_difference();
    return first == nullptr ? "none" : first->title;
  };
  EXPECT_EQ(first_of("ranks=2,train.seed=6"), "samples");
  EXPECT_EQ(first_of("ranks=2,model.dropout=0.1"), "output of stem");
  EXPECT_EQ(first_of("ranks=2,model.drop_path=0.2"), "output of blocks.1");  // the rate of block 0 is 0
  EXPECT_EQ(first_of("ranks=2,train.label_smoothing=0.2"), "loss");
}

/// AdamW subtracts lr * weight_decay * weight: of the first matrix of the model, lr 0.01, decays 0.05 and
/// 0.25.
TEST(CompareLayouts, NamesAWeightWhoseUpdateDiffers) {
  const LayoutComparison found = compare("ranks=1", "ranks=2,optimizer.weight_decay=0.25", in_float64(),
                                         {"optimizer.weight_decay=0.05"});
  const TensorDifference* first = found.report.first_difference();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->title, "patch_embed.proj.weight after the step");
  const auto specs = arch::parameters(make_recipe().model);
  const auto spec = std::ranges::find(specs, "patch_embed.proj.weight", &arch::ParameterSpec::name);
  const at::Tensor initial = at::empty({spec->numel()}, at::kFloat);
  models::initialise(*spec, 5, Region::whole(spec->shape), initial);
  int64_t element = 0;
  for (size_t dim = 0; dim < spec->shape.size(); ++dim)
    element = element * spec->shape[dim] + first->index[dim];
  EXPECT_NEAR(first->a - first->b, 0.01 * 0.2 * initial[element].item<double>(), 1e-14);
}

TEST(CompareLayouts, WarmupWithoutAnUpdateIsNoted) {
  const LayoutComparison found = compare("ranks=1", "ranks=2", {}, {"schedule.warmup_steps=2"});
  ASSERT_EQ(found.notes.size(), 1U);
  EXPECT_TRUE(found.notes[0].starts_with("the learning rate of the first step is 0")) << found.notes[0];
}

TEST(CompareLayouts, RefusesWhatCannotBeCompared) {
  const auto text = [](const std::string& a, const std::string& b, const CompareOptions& options = {},
                       const std::vector<std::string>& sets = {}) {
    return error_text([&] { compare(a, b, options, sets); });
  };
  EXPECT_EQ(
      text("ranks=1", "ranks=2,model.depth=2"),
      "[compare.layouts] the layouts have models with other parameters: blocks.2.norm1.weight [24] under A, "
      "norm.weight [24] under B: expected settings that do not change the model");
  EXPECT_EQ(text("ranks=1", "ranks=2,train.batch=24"),
            "[compare.layouts] the global batch is 48 under A and 24 under B: expected the same for both; "
            "give it with "
            "--set train.batch=N");
  const std::string uneven = text("ranks=1", "ranks=2,train.batch_per_rank=7");
  EXPECT_TRUE(uneven.ends_with("(layout 'ranks=2,train.batch_per_rank=7')")) << uneven;
  EXPECT_NE(uneven.find("train.batch"), std::string::npos) << uneven;
  EXPECT_EQ(
      text("ranks=1", "ranks=2,run.device=cuda"),
      "[compare.layouts] run.device is cuda (layout 'ranks=2,run.device=cuda'): expected cpu: layouts are "
      "compared on the CPU");
  plan::Plan keeps = plan::uniform_plan(make_recipe().model, 2, plan::Level::kZero3, false, 1);
  keeps.units[1].keep_gathered = true;
  const SavedPlan saved(keeps);
  const std::string refused = text("ranks=1", saved.path());
  EXPECT_NE(refused.find("training does not support \"keep_gathered\" true"), std::string::npos) << refused;
}

TEST(CompareLayouts, PlanFilesOfOneStageHaveTheirMicroBatches) {
  plan::Plan accumulates = plan::uniform_plan(make_recipe().model, 2, plan::Level::kZero3, false, 1);
  accumulates.micro_batches = 3;
  const SavedPlan saved(accumulates);
  expect_agreement(compare("ranks=1", saved.path(), in_float64()), 1e-11);
  const std::string refused =
      error_text([&] { compare("ranks=1", saved.path(), {}, {"train.accumulation=2"}); });
  EXPECT_TRUE(refused.starts_with("[train.batch_sizes] train.accumulation is 2, and parallel.plan has 3 "))
      << refused;
}

TEST(CompareLayouts, Float64ReplacesFp8AndSaysSo) {
  const auto notes = [](const std::string& b) { return compare("ranks=1", b, in_float64()).notes; };
  EXPECT_EQ(notes("ranks=1"), std::vector<std::string>{});
  EXPECT_EQ(notes("ranks=1,precision.linear=fp8"),
            std::vector<std::string>{
                "precision.linear = fp8 has no effect: with --float64 all layers compute in float64"});
}

TEST(CompareLayouts, Float64DoesNotCoverBatchNorm) {
  const std::string text = error_text([] { compare_resnet("ranks=1", "ranks=2", in_float64()); });
  EXPECT_TRUE(text.starts_with("[compare.layouts] --float64 does not cover BatchNorm")) << text;
}

TEST(ReadLayout, NamesWhatIsWrong) {
  const auto text = [](const std::string& layout) {
    return error_text([&] { read_layout(layout, recipe_with()); });
  };
  EXPECT_EQ(text("nowhere.json"),
            "[compare.layouts] layout 'nowhere.json' is neither a plan file nor a list of settings: expected "
            "the path "
            "of a plan.json, or settings such as ranks=4,shard.level=zero3");
  EXPECT_EQ(text("ranks=4,zero3"),
            "[compare.layouts] layout 'ranks=4,zero3' has 'zero3', which is not KEY=VALUE: expected a plan "
            "file, or "
            "settings such as ranks=4,shard.level=zero3; separate settings by ; where values contain commas");
  EXPECT_EQ(text("ranks=two"), "[compare.layouts] layout 'ranks=two': ranks is 'two': expected an integer");
  EXPECT_EQ(text("ranks=0"),
            "[compare.layouts] layout 'ranks=0' has 0 ranks: expected 1 to 64: the ranks are threads of one "
            "process");
  const std::string unknown = text("ranks=2,shard.levels=zero3");
  EXPECT_TRUE(unknown.ends_with("(layout 'ranks=2,shard.levels=zero3')")) << unknown;
  EXPECT_NE(unknown.find("shard.levels"), std::string::npos) << unknown;
  const SavedPlan other(plan::uniform_plan(resnet_recipe().model, 2, plan::Level::kZero3, false, 1));
  const std::string of_other = text(other.path());
  EXPECT_TRUE(of_other.starts_with("[plan.read_plan] ")) << of_other;
  EXPECT_NE(of_other.find(other.path()), std::string::npos) << of_other;
}

TEST(ReadLayout, NamesWhatIsWrongWithRanksAndFolders) {
  const auto text = [](const std::string& layout) {
    return error_text([&] { read_layout(layout, recipe_with()); });
  };
  EXPECT_EQ(text("ranks=1,ranks=2"), "[compare.layouts] layout 'ranks=1,ranks=2' gives ranks twice");
  const std::string folder = ::testing::TempDir();
  EXPECT_EQ(text(folder), concat("[compare.layouts] there is no plan.json in the folder of layout '", folder,
                                 "': expected the folder of a run"));
}

TEST(ReadLayout, SeparatesSettings) {
  const Layout commas = read_layout("ranks = 4, shard.level = zero2,shard.ranks=2", recipe_with());
  EXPECT_EQ(commas.plan.world, 4);
  EXPECT_EQ(commas.plan.units[0].level, plan::Level::kZero2);
  EXPECT_EQ(commas.plan.units[0].shard, 2);
  const Layout semicolons =
      read_layout("shard.units=stem=replicate, blocks.0-1=zero2; ranks=2;", recipe_with());
  EXPECT_EQ(semicolons.plan.world, 2);
  EXPECT_EQ(semicolons.plan.units[0].level, plan::Level::kReplicate);
  EXPECT_EQ(semicolons.plan.units[2].level, plan::Level::kZero2);
  EXPECT_EQ(semicolons.plan.units[3].level, plan::Level::kZero3);
  EXPECT_EQ(read_layout("shard.level=zero1", recipe_with()).plan.world, 1);
}

}  // namespace
}  // namespace tessera::train
