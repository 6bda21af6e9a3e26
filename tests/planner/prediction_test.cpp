// SPDX-License-Identifier: Apache-2.0
// What `tessera plan predict` and `tessera plan simulate` print.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tessera/base/file.h"
#include "tessera/cli/plan_prediction.h"
#include "tessera/planner/profile_json.h"
#include "tests/error_text.h"

namespace tessera::cli {
namespace {

constexpr const char* kRecipe = R"(
[model]
image_size = 32
patch_size = 8
width = 64
depth = 2
heads = 4
mlp_width = 256
pool = "gap"
class_token = false
classes = 10
[train]
batch = 16
steps = 10
accumulation = 2
)";

class PlanPrediction : public testing::Test {
 protected:
  void SetUp() override {
    query_.recipe = (folder_.path() / "prediction_recipe.toml").string();
    query_.profile = (folder_.path() / "prediction_profile.json").string();
    query_.ranks = 2;
    write_file_atomic(query_.recipe, kRecipe);
    profile_.model = recipe::read_recipe(query_.recipe, {}).model;
    profile_.provenance = {"host", "a CPU", "CPU", "a build", "2026-11-27T08:00:00Z", "fp32", 1, 2, 3};
    for (const char* kind : {"stem", "blocks.0", "head"})
      profile_.units.push_back({kind, 1, 4, plan::Recompute::kNone, 0.25, 0.5, 0});
    for (const char* operation : {"all_gather", "reduce_scatter", "send"})
      profile_.links.push_back({operation, "adjacent", "TCP", 2, 0.125, 1e18, 0, {}});
    save();
  }
  void save() { write_file_atomic(query_.profile, planner::to_json(profile_)); }
  std::string error(const Here& here) {
    return error_text([&] { predict(query_, here); });
  }

  const TemporaryFolder folder_{"tessera-prediction"};
  PredictionQuery query_;
  planner::Profile profile_;
};

TEST_F(PlanPrediction, TableShowsPartsImagesBytesAndMemory) {
  query_.sets = {"shard.level=zero3", "shard.prefetch=0"};
  const Prediction prediction = predict(query_, {"a CPU", "a build"});
  // 4 units, 2 micro-batches; 7 gathers and 4 sums each.
  EXPECT_NEAR(prediction.time.seconds, 2 * (4 * 0.75 + 11 * 0.125), 1e-9);
  std::ostringstream out;
  print_prediction(prediction, out);
  const std::string text = out.str();
  EXPECT_TRUE(
      text.starts_with("ViT, width 64, depth 2, heads 4, patch 8, 16 tokens of a 32 px image; 2 ranks, "
                       "16 images per step (4 per rank x 2 micro-batches)\n"
                       "  compute           6.0000 s   68.6 %\n"
                       "  gathers           1.7500 s   20.0 %\n"
                       "  reductions        1.0000 s   11.4 %\n"
                       "  step              8.7500 s  1.83 images/s\n"
                       "sent per rank and step: "))
      << text;
  EXPECT_NE(text.find("\nmemory per rank: "), std::string::npos) << text;
}

TEST_F(PlanPrediction, JsonAndDrawingAndTraceAreOfEveryStage) {
  query_.sets = {"parallel.pipeline=2", "train.accumulation=0", "parallel.micro_batches=4"};
  query_.record = true;
  const Prediction prediction = predict(query_, {});
  std::ostringstream out;
  print_prediction_json(prediction, out);
  const auto json = nlohmann::json::parse(out.str());
  ASSERT_EQ(json.at("stages").size(), 2u);
  for (const auto& stage : json.at("stages")) {
    double sum = 0;
    for (const auto& [name, seconds] : stage.at("seconds").items()) sum += seconds.get<double>();
    EXPECT_NEAR(sum, json.at("seconds").get<double>(), 1e-9);
    EXPECT_GT(stage.at("memory").at("memory_bytes").get<int64_t>(), 0);
  }
  std::ostringstream drawing;
  print_drawing(prediction, drawing);
  EXPECT_NE(drawing.str().find("stage 1  rank 1: blocks.1 to head\n  ...."), std::string::npos)
      << drawing.str();
  const auto trace = nlohmann::json::parse(trace_of(prediction));
  double computed[2] = {0, 0};
  for (const auto& event : trace.at("traceEvents")) {
    const std::string category = event.value("cat", "");
    if (category == "forward" || category == "backward")
      computed[event.at("pid").get<size_t>()] += event.at("dur").get<double>();
  }
  EXPECT_NEAR(computed[0], 4 * 2 * 0.75e6, 1);  // of 4 images in a micro-batch, 2 units, microseconds
  EXPECT_NEAR(computed[1], 4 * 2 * 0.75e6, 1);
}

TEST_F(PlanPrediction, RefusesAProfileOfSomethingElse) {
  EXPECT_EQ(error({"a CPU", "a build"}), "no error");
  EXPECT_EQ(error({"another CPU", ""}),
            "[cli.plan_predict] the profile is of another machine: a CPU (" + query_.profile +
                "): expected another CPU; measure again with tessera plan profile, or add --force");
  EXPECT_EQ(error({"", "other build"}),
            "[cli.plan_predict] the profile is of another build: a build (" + query_.profile +
                "): expected other build; measure again with tessera plan profile, or add --force");
  query_.sets = {"precision.compute=bf16"};
  EXPECT_EQ(
      error({}),
      "[cli.plan_predict] the profile was measured in fp32 (" + query_.profile +
          "): expected bf16 (precision.compute); measure again with tessera plan profile, or add --force");
  profile_.provenance.build = "";  // imported
  profile_.provenance.processor = "";
  save();
  EXPECT_NE(error({}), "no error") << "the dtype is compared";
  query_.sets = {"run.threads=2"};
  EXPECT_EQ(error({"another CPU", "other build"}), "no error");
  query_.sets = {"precision.compute=bf16"};
  query_.force = true;
  EXPECT_EQ(error({"another CPU", "other build"}), "no error");
  query_.sets = {"model.mlp_width=128"};
  const std::string model = "ViT, width 64, depth 2, heads 4, patch 8, 16 tokens of a 32 px image";
  EXPECT_EQ(error({}),
            "[cli.plan_predict] the profile is of another model: " + model + " (" + query_.profile +
                "): expected " + model +
                ", with the recipe's other keys of [model]; measure it with tessera plan profile " +
                query_.recipe)
      << "even with --force";
}

TEST_F(PlanPrediction, AnAutomaticDtypeIsThatOfTheMachine) {
  query_.sets = {"precision.compute=auto"};
  EXPECT_EQ(error({}), "no error") << "what auto is on the machine is not known";
  profile_.provenance.automatic_compute = "bf16";
  save();
  const std::string again = "measure again with tessera plan profile, or add --force";
  EXPECT_EQ(error({}), "[cli.plan_predict] the profile was measured in fp32 (" + query_.profile +
                           "): expected bf16 (precision.compute is auto); " + again);
  query_.sets = {"precision.compute=fp32"};
  EXPECT_EQ(error({}), "no error");
}

TEST_F(PlanPrediction, TheDeviceOfARunIsThatOfTheProfile) {
  EXPECT_NE(error({"a CPU", "a build", {"NVIDIA H100"}}).find("expected one of NVIDIA H100"),
            std::string::npos);
  query_.sets = {"run.device=cpu"};
  EXPECT_EQ(error({"a CPU", "a build", {"NVIDIA H100"}}), "no error");
  query_.sets = {"run.device=cuda"};
  EXPECT_NE(error({}).find("the profile is of the CPU"), std::string::npos);
  profile_.provenance.device = "NVIDIA H100";
  save();
  EXPECT_EQ(error({}), "no error");
  query_.sets = {"run.device=cpu"};
  EXPECT_NE(error({}).find("the profile is of a GPU: NVIDIA H100"), std::string::npos);
}

TEST_F(PlanPrediction, AFileThatIsNoRecipeIsNamed) {
  query_.recipe = query_.profile;
  EXPECT_NE(error({}).find("a JSON file: expected a recipe (TOML); of a plan file: the recipe that it is "
                           "for, and --set parallel.plan="),
            std::string::npos)
      << error({});
}

TEST_F(PlanPrediction, AProfileOfAGpuIsForThatGpuAndItsActivations) {
  profile_.provenance.device = "NVIDIA H100";
  profile_.provenance.keeps_activations = true;
  profile_.provenance.assumed_links = "abacus: a data sheet";
  save();
  const std::string again = "measure again with tessera plan profile, or add --force";
  EXPECT_EQ(error({"a CPU", "a build", {"NVIDIA A100", "NVIDIA H100"}}), "no error");
  EXPECT_EQ(error({"a CPU", "a build"}), "no error") << "the driver lists none";
  EXPECT_EQ(error({"a CPU", "a build", {"NVIDIA A100"}}),
            "[cli.plan_predict] the profile is of another GPU: NVIDIA H100 (" + query_.profile +
                "): expected NVIDIA A100; " + again);
  query_.sets = {"run.keep_activations=never"};
  EXPECT_EQ(error({}),
            "[cli.plan_predict] the profile was measured with run.keep_activations = \"always\" (" +
                query_.profile + "): expected \"never\", as the recipe says; " + again);
  query_.sets = {"run.keep_activations=always"};
  EXPECT_EQ(error({}), "no error");
  query_.sets = {};
  const Prediction prediction = predict(query_, {});
  EXPECT_TRUE(prediction.question.inputs.keeps_activations);
  EXPECT_FALSE(prediction.question.inputs.tensor_pieces) << "as a training on a GPU";
  EXPECT_EQ(prediction.time.assumptions,
            (std::vector<std::string>{"messages between ranks and slowdowns, abacus: a data sheet",
                                      "run.keep_activations = \"always\", as measured"}));
  profile_.links = {};
  save();
  const std::string text = error({});
  EXPECT_NE(text.find("measure again with tessera plan profile --machine FILE"), std::string::npos) << text;
  query_.ranks = 1;
  EXPECT_EQ(error({}), "no error") << "one rank sends nothing";
}

TEST_F(PlanPrediction, AcceptsAnAssumedProfileEverywhereAndSaysSo) {
  profile_.provenance = {"", "", "abacus (assumed)", "", "", "fp32", 1, 2, 1, "", "a data sheet", 1000};
  save();
  query_.sets = {"run.threads=3"};
  const Prediction prediction = predict(query_, {"another CPU", "other build"});
  std::ostringstream table, json;
  print_prediction(prediction, table);
  EXPECT_NE(table.str().find("assumed: the machine, abacus (assumed): a data sheet\n"), std::string::npos)
      << table.str();
  EXPECT_NE(table.str().find("): does not fit, abacus (assumed) has 1000 B\n"), std::string::npos)
      << table.str();
  print_prediction_json(prediction, json);
  const auto read = nlohmann::json::parse(json.str());
  EXPECT_EQ(read.at("assumptions").at(0), "the machine, abacus (assumed): a data sheet");
  EXPECT_EQ(read.at("device_memory_bytes"), 1000);
  query_.sets = {"precision.compute=bf16"};
  EXPECT_EQ(error({}), "[cli.plan_predict] the profile is for fp32 (" + query_.profile +
                           "): expected bf16 (precision.compute); describe a machine for it to tessera plan "
                           "assume, or add --force");
  query_.force = true;
  EXPECT_EQ(error({}), "no error");
}

}  // namespace
}  // namespace tessera::cli
