// SPDX-License-Identifier: Apache-2.0
// What `tessera plan search` reads and prints.
#include "tessera/cli/plan_search.h"

#include <gtest/gtest.h>

#include "tests/error_text.h"

namespace tessera::cli {
namespace {

TEST(PlanSearch, MemoryHasUnitsOfTwoAndOfTen) {
  EXPECT_EQ(bytes_from_text("24GiB", "here"), 24.0 * 1024 * 1024 * 1024);
  EXPECT_EQ(bytes_from_text("80 GB", "here"), 80e9);
  EXPECT_EQ(bytes_from_text("1.5MiB", "here"), 1.5 * 1024 * 1024);
  EXPECT_EQ(bytes_from_text("4096", "here"), 4096);
  for (const char* text : {"", "GiB", "0", "-1GiB", "1e9", "2Gib", "nan", "1.2.3GB", "99999999TiB"}) {
    EXPECT_NE(error_text([&] { bytes_from_text(text, "here"); }).find("expected a size such as 24GiB"),
              std::string::npos)
        << text;
  }
}

plan::Plan plan_of(std::initializer_list<const char*> units) {
  plan::Plan plan;
  for (const char* name : units) {
    plan.units.emplace_back();
    plan.units.back().name = name;
  }
  return plan;
}

TEST(PlanSearch, LayoutsOfNeighboursAreToldTogether) {
  plan::Plan plan = plan_of({"stem", "blocks.0", "blocks.1", "blocks.2", "head"});
  EXPECT_EQ(layout_text(plan), "all zero3");
  plan.units[1].recompute = plan.units[2].recompute = plan::Recompute::kAll;
  EXPECT_EQ(layout_text(plan), "stem zero3; blocks.0-1 zero3 recompute; blocks.2 to head zero3");
  plan.units[3].layout = {4, false};
  plan.units[3].shard = 2;
  plan.units[3].recompute = plan::Recompute::kKeepSums;
  plan.units[4].level = plan::Level::kReplicate;
  EXPECT_EQ(layout_text(plan),
            "stem zero3; blocks.0-1 zero3 recompute; blocks.2 zero3 ranks2 tensor4 strided keep_sums; head "
            "replicate");
}

TEST(PlanSearch, FramesNameStagesAndMicroBatches) {
  planner::StepQuestion question;
  question.batch = 8;
  question.accumulation = 2;
  EXPECT_EQ(frame_text(question), "1 stage, 2 x 8 images");
  question.batch = 1;
  question.plan = plan_of({"stem", "blocks.0", "blocks.1", "blocks.2", "blocks.3", "blocks.4", "head"});
  question.plan.stages = 4;
  question.plan.first_unit = {0, 2, 4, 6};
  question.plan.ahead = 1;
  question.plan.prefetch = 2;
  EXPECT_EQ(frame_text(question), "4 stages, 1F1B ahead 1, 2x3+1 units, 2 x 1 image, prefetch 2");
  question.plan.ahead = 0;
  question.plan.virtual_stages = 2;
  question.plan.schedule = plan::Schedule::kInterleaved;
  EXPECT_EQ(frame_text(question),
            "4 stages, interleaved with 2 virtual stages, 2x3+1 units, 2 x 1 image, prefetch 2");
}

TEST(PlanSearch, SettingsReplaceKeysThatWouldContradictThePlan) {
  SearchedPlan searched;
  searched.of.recipe.train.batch = 64;
  planner::FoundPlan found;
  found.batch = 64;
  found.question.batch = 16;
  found.question.accumulation = 2;
  using Sets = std::vector<std::string>;
  EXPECT_EQ(settings_of(searched, found, "a \"b\".json"), (Sets{"parallel.plan=\"a \\\"b\\\".json\""}))
      << "the plan has its micro-batches";
  searched.of.recipe.train.accumulation = 2;
  EXPECT_EQ(settings_of(searched, found, "p"), (Sets{"parallel.plan=\"p\""}));
  found.question.plan.stages = 2;
  found.batch = 128;
  searched.of.recipe.parallel.tensor = 2;
  searched.of.recipe.parallel.pipeline.stages = 4;
  searched.of.recipe.parallel.pipeline.schedule = plan::Schedule::kGpipe;
  searched.of.recipe.shard.units = "head=replicate";
  EXPECT_EQ(settings_of(searched, found, "p"),
            (Sets{"parallel.plan=\"p\"", "train.batch=128", "shard.units=", "parallel.tensor=1",
                  "parallel.pipeline=1", "parallel.schedule=1f1b"}));
}

TEST(PlanSearch, ATrainingOnAGpuKeepsActivationsAsItWasMeasured) {
  SearchedPlan searched;
  searched.of.profile.provenance.device = "NVIDIA H100";
  searched.of.profile.provenance.build = "a build";
  const auto last = [&] { return settings_of(searched, {}, "plan.json").back(); };
  EXPECT_EQ(last(), "run.keep_activations=never");
  searched.of.profile.provenance.keeps_activations = true;
  EXPECT_EQ(last(), "run.keep_activations=always");
  searched.of.recipe.run.keep_activations = recipe::KeepActivations::kAlways;
  EXPECT_NE(last(), "run.keep_activations=always") << "the recipe says it";
}

}  // namespace
}  // namespace tessera::cli
