// SPDX-License-Identifier: Apache-2.0
// What `tessera plan explain` writes, against the explanation that it is made of.
#include "tessera/cli/plan_page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/cli/plan_page_parts.h"
#include "tessera/monitor/html.h"
#include "tessera/monitor/number.h"
#include "tessera/planner/profile_json.h"
#include "tests/error_text.h"

namespace tessera::cli {
namespace {

constexpr const char* kPageRecipe = R"(
name = "small <b>"
[model]
image_size = 32
patch_size = 8
width = 64
depth = 4
heads = 4
mlp_width = 256
pool = "gap"
class_token = false
classes = 10
[train]
batch = 16
steps = 10
)";

size_t count_of(const std::string& text, const std::string& word) {
  size_t count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + word.size())) ++count;
  return count;
}

class PlanPage : public testing::Test {
 protected:
  void SetUp() override {
    request_.query.recipe = (folder_.path() / "page_recipe.toml").string();
    request_.query.profile = (folder_.path() / "page_profile.json").string();
    request_.query.ranks = 4;
    request_.memory = "1GiB";
    write_file_atomic(request_.query.recipe, kPageRecipe);
    planner::Profile profile;
    profile.model = recipe::read_recipe(request_.query.recipe, {}).model;
    profile.provenance = {"host 7", "a CPU", "CPU", "a build", "2026-11-27T08:00:00Z", "fp32", 1, 4, 3};
    for (const char* kind : {"stem", "blocks.0", "head"})
      for (const int64_t tensor : {1, 2})
        for (const int64_t batch : {1, 4})
          profile.units.push_back({kind, tensor, batch, plan::Recompute::kNone,
                                   0.1 * static_cast<double>(batch), 0.2 * static_cast<double>(batch), 0});
    for (const char* operation : {"all_gather", "reduce_scatter", "exchange", "send"})
      for (const char* kind : {"adjacent", "strided"})
        profile.links.push_back({operation, kind, "TCP", 2, 0.0125, 1e6, 0, {}});
    write_file_atomic(request_.query.profile, planner::to_json(profile));
  }
  ExplainedPlan explain() { return explain_plan(request_, {}); }

  const TemporaryFolder folder_{"tessera-page"};
  SearchRequest request_;
};

TEST_F(PlanPage, HasTheNumbersAndReasonsOfEveryPlan) {
  const ExplainedPlan explained = explain();
  const std::string page = plan_page(explained);
  const auto has = [&](const std::string& text) { EXPECT_NE(page.find(text), std::string::npos) << text; };
  ASSERT_EQ(explained.explanation.alternatives.size(), 7U);
  for (const planner::Alternative& one : explained.explanation.alternatives) {
    has(concat("<b>", one.name, "</b>"));
    has(monitor::escape_html(one.reason));
    if (!one.plan) continue;
    has(concat("<td class=\"n\">", human_bytes(sent_bytes(explained, *one.plan)), "</td>"));
    has(monitor::escape_html(layout_text(one.plan->question.plan)));
    if (one.fits()) has(concat(">", monitor::rate_text(1 / one.plan->seconds_per_image()), "</td>"));
  }
  for (const planner::Variation& one : explained.explanation.variations)
    has(concat("<td>", one.change, "</td>"));
  for (const planner::RankCount& one : explained.explanation.counts)
    has(concat("<td class=\"n\">", monitor::fixed(one.images_per_rank_hour, 0), "</td>"));
  for (const std::string& one : explained.searched.result.restrictions) has(monitor::escape_html(one));
  has("host 7");
  has("2026-11-27T08:00:00Z");
}

TEST_F(PlanPage, IsOneFileOfClosedElements) {
  const std::string page = plan_page(explain());
  for (const char* tag : {"div", "table", "tr", "td", "section", "details", "svg", "p", "ul", "dl", "pre"})
    EXPECT_EQ(count_of(page, concat("<", tag, ">")) + count_of(page, concat("<", tag, " ")),
              count_of(page, concat("</", tag, ">")))
        << tag;
  for (const char* reference : {"src=", "href=", "@import", "url(http", "<link"})
    EXPECT_EQ(page.find(reference), std::string::npos) << reference;
  EXPECT_NE(page.find("small &lt;b&gt;"), std::string::npos);
  EXPECT_EQ(page.find("small <b>"), std::string::npos);
  for (const char* id : {"summary", "plans", "step", "stages", "layout", "sensitivity", "ranks", "constants"})
    EXPECT_EQ(count_of(page, concat("<section id=\"", id, "\">")), 1U) << id;
}

TEST_F(PlanPage, EveryStageHasItsUnitsAndItsTimeFillsTheBar) {
  request_.query.sets = {"train.batch=8"};
  const ExplainedPlan explained = explain();
  for (const planner::StageTime& stage : explained.winner.time.stages) {
    double sum = 0;
    for (const BarPiece& piece : pieces_of(stage.parts)) sum += piece.value;
    EXPECT_NEAR(sum, explained.winner.time.seconds, 1e-9);
  }
  for (const plan::Memory& memory : explained.winner.memory) {
    double sum = 0;
    for (const BarPiece& piece : pieces_of(memory)) sum += piece.value;
    EXPECT_NEAR(sum, memory.total(), 1);
  }
  const std::string strips = layout_part(explained);
  for (const plan::UnitPlan& unit : explained.winner.question.plan.units)
    EXPECT_EQ(count_of(strips, concat("title=\"", unit.name, ": ", unit_text(unit), "\"")), 1U) << unit.name;
}

TEST_F(PlanPage, BarsAreSharesOfTheWhole) {
  EXPECT_EQ(bar({{"a", "blue", 0, 1, "1 s"}, {"b", "green", 1, 2, "2 s"}}, 4),
            "<div class=\"stack\"><i class=\"blue\" style=\"width:25.00%\" title=\"a: 1 s\"></i>"
            "<i class=\"green\" style=\"width:50.00%\" title=\"b: 2 s\"></i></div>");
}

TEST_F(PlanPage, TheChartCountsRanks) {
  const std::string part = counts_part(explain());
  EXPECT_NE(part.find("aria-label=\"Images per rank-hour over 4 ranks, between 0 and "), std::string::npos)
      << part;
  EXPECT_NE(part.find("\"across\":\"ranks\""), std::string::npos);
}

TEST_F(PlanPage, TimelineHasPassesWaitsAndMessages) {
  PredictionQuery query = request_.query;
  query.record = true;
  query.sets = {"parallel.pipeline=2", "parallel.micro_batches=2", "shard.level=zero3", "shard.prefetch=0"};
  const Prediction prediction = predict(query, {});
  const monitor::StepTimeline timeline = timeline_of(prediction);
  ASSERT_EQ(timeline.ranks.size(), 4U);
  EXPECT_EQ(timeline.seconds, prediction.time.seconds);
  for (size_t rank = 0; rank < 4; ++rank) {
    const auto& spans = prediction.time.timing.stages[rank / 2];
    ASSERT_EQ(timeline.ranks[rank].passes.size(), spans.size());
    for (size_t i = 0; i < spans.size(); ++i) {
      EXPECT_EQ(timeline.ranks[rank].passes[i].action, spans[i].action);
      EXPECT_EQ(timeline.ranks[rank].passes[i].time.begin, spans[i].begin);
    }
  }
  const auto seconds = [](const std::vector<monitor::Interval>& times) {
    double sum = 0;
    for (const monitor::Interval& one : times) sum += one.seconds();
    return sum;
  };
  for (size_t stage = 0; stage < 2; ++stage) {
    const monitor::RankTimeline& rank = timeline.ranks[2 * stage];
    const planner::StepParts& parts = prediction.time.stages[stage].parts;
    EXPECT_GT(parts.gathers, 0);
    EXPECT_NEAR(seconds(rank.exchange_waits), parts.gathers + parts.reductions, 1e-9);
    EXPECT_LE(seconds(rank.stage_waits), parts.messages + parts.bubble + 1e-9);
  }
  EXPECT_GT(seconds(timeline.ranks[2].stage_waits), 0) << "the second stage waits for the first";
}

TEST_F(PlanPage, JsonAndTextSayTheSame) {
  const ExplainedPlan explained = explain();
  std::ostringstream text, json_text;
  print_explanation(explained, text);
  print_explanation_json(explained, json_text);
  const auto json = nlohmann::json::parse(json_text.str());
  const planner::FoundPlan& winner = explained.searched.result.best.front();
  EXPECT_EQ(json.at("winner").at("seconds").get<double>(), winner.time.seconds);
  EXPECT_EQ(json.at("alternatives").size(), 7U);
  EXPECT_EQ(json.at("variations").size(), 4U);
  EXPECT_EQ(json.at("counts").size(), 3U);
  for (const auto& one : json.at("alternatives")) {
    EXPECT_NE(text.str().find(one.at("reason").get<std::string>()), std::string::npos) << one;
    if (!one.at("fits").get<bool>()) continue;
    EXPECT_GE(one.at("found").at("seconds").get<double>(), (1 - 1e-9) * winner.time.seconds) << one;
  }
}

TEST_F(PlanPage, ErrorsAreThoseOfTheSearch) {
  request_.memory = "1MiB";
  EXPECT_TRUE(error_text([&] { explain(); }).starts_with("[cli.plan_search] no plan fits into 1.00 MiB"));
  request_.memory = "much";
  EXPECT_TRUE(error_text([&] { explain(); }).starts_with("[cli.plan_search] --memory is much"));
}

TEST(RentingText, NamesTheNumbersOfRanks) {
  planner::Explanation explanation;
  const double images[] = {100, 95, 50};
  for (size_t i = 0; i < 3; ++i) {
    planner::RankCount count;
    count.ranks = int64_t{1} << i;
    count.best = planner::FoundPlan{};
    count.images_per_rank_hour = images[i];
    explanation.counts.push_back(count);
  }
  EXPECT_EQ(
      renting_text(explanation),
      "A rank-hour yields most images with 1 rank. With 2 ranks it yields at least 90 % of that. With more "
      "ranks it yields less than 90 %: each image costs more.");
  explanation.counts.pop_back();
  EXPECT_EQ(renting_text(explanation),
            "A rank-hour yields most images with 1 rank. With 2 ranks it yields at least 90 % of that.");
}

}  // namespace
}  // namespace tessera::cli
