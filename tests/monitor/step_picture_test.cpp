// SPDX-License-Identifier: Apache-2.0
// The picture of a traced step, against traces whose times are known.
#include "tessera/monitor/step_picture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <sstream>

#include "../error_text.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/monitor/mesh_panel.h"

namespace tessera::monitor {
namespace {

using plan::Direction;

constexpr double kPlotLeft = 226, kPlotWidth = 758;  // of the drawing

/// Events of ranks in milliseconds, as a trace has them.
class TraceText {
 public:
  void span(int64_t rank, const std::string& kind, const std::string& name, double begin, double end) {
    add(concat(R"({"ph":"X","cat":")", kind, R"(","name":")", name, R"(","pid":)", rank, R"(,"tid":0,"ts":)",
               1000 * (kStart + begin), R"(,"dur":)", 1000 * (end - begin), "}"));
  }
  void beside(int64_t rank, const std::string& name, double begin, double end) {
    ++number_;
    add(concat(R"({"ph":"b","cat":"communication","name":")", name, R"(","pid":)", rank, R"(,"id":")",
               number_, R"(","ts":)", 1000 * (kStart + begin), "}"));
    add(concat(R"({"ph":"e","cat":"communication","name":")", name, R"(","pid":)", rank, R"(,"id":")",
               number_, R"(","ts":)", 1000 * (kStart + end), "}"));
  }
  std::string text() const { return concat(R"({"traceEvents":[)", join(events_, ",\n"), "]}"); }

 private:
  static constexpr double kStart = 5000;
  void add(const std::string& event) { events_.push_back(event); }
  std::vector<std::string> events_;
  int64_t number_ = 0;
};

plan::Plan make_plan(int64_t world, int64_t stages, int64_t micro_batches, int64_t tensor = 1) {
  plan::Plan plan;
  plan.world = world;
  plan.stages = stages;
  plan.micro_batches = micro_batches;
  plan.first_unit.clear();
  for (int64_t stage = 0; stage < stages; ++stage) plan.first_unit.push_back(stage);
  for (int64_t i = 0; i < std::max<int64_t>(stages, 2); ++i) {
    plan.units.push_back({.name = concat("blocks.", i)});
    plan.units.back().layout.tensor = tensor;
  }
  return plan;
}

struct Pass {
  const char* name;
  double begin, end;
};

/// 2 stages, 2 micro-batches: a step of 110 ms, whose first pass begins at 5 ms and whose last ends at 105
/// ms. Stage 0 computes 60 ms of these, stage 1 70 ms.
constexpr Pass kStages[2][4] = {{{"F0", 5, 15}, {"F1", 15, 25}, {"B0", 45, 65}, {"B1", 85, 105}},
                                {{"F0", 15, 25}, {"B0", 25, 45}, {"F1", 45, 55}, {"B1", 55, 85}}};

TraceText two_stages(int64_t ranks_of_stage = 1) {
  TraceText trace;
  for (int64_t rank = 0; rank < 2 * ranks_of_stage; ++rank) {
    const int64_t stage = rank / ranks_of_stage;
    for (const int64_t step : {1, 2}) {
      const double start = step == 1 ? -1000 : 0;
      for (const auto& [name, begin, end] : kStages[stage])
        trace.span(rank, "pass", name, start + begin, start + end);
      trace.span(rank, "optimizer", "optimizer", start + 106, start + 109);
      trace.span(rank, "step", concat("step ", step), start, start + 110);
    }
  }
  return trace;
}

StepTimeline read(const TraceText& trace, std::optional<int64_t> step = {}) {
  return read_step_timeline(trace.text(), "trace.json", step);
}

/// The elements of a rank's row; "" where it is not drawn.
std::string row_of(const std::string& picture, int64_t rank) {
  const size_t begin = picture.find(concat("id=\"rank-", rank, "\""));
  return begin == std::string::npos ? "" : picture.substr(begin, picture.find("</g>", begin) - begin);
}

struct Rect {
  double x, width;
};
/// The boxes of a row with this class, in the order in which they are drawn.
std::vector<Rect> boxes(const std::string& row, const std::string& style) {
  const std::regex pattern(
      concat("<rect class=\"", style, "( [a-z]\\d)?\" x=\"([0-9.]+)\" y=\"[0-9.]+\" width=\"([0-9.]+)\""));
  std::vector<Rect> found;
  for (std::sregex_iterator it(row.begin(), row.end(), pattern), end; it != end; ++it)
    found.push_back({std::stod((*it)[2]), std::stod((*it)[3])});
  return found;
}

/// The areas of a row with this class, which are one path.
std::vector<Rect> areas(const std::string& row, const std::string& style) {
  const size_t begin = row.find(concat("<path class=\"", style, "\""));
  if (begin == std::string::npos) return {};
  const std::string path = row.substr(begin, row.find("/>", begin) - begin);
  const std::regex pattern("M([0-9.]+) [0-9.]+h([0-9.]+)v[0-9]+h-([0-9.]+)z");
  std::vector<Rect> found;
  for (std::sregex_iterator it(path.begin(), path.end(), pattern), end; it != end; ++it) {
    EXPECT_EQ((*it)[2], (*it)[3]) << path;
    found.push_back({std::stod((*it)[1]), std::stod((*it)[2])});
  }
  return found;
}

size_t count_of(const std::string& text, const std::string& word) {
  size_t found = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
  return found;
}

TEST(StepTimeline, HoldsTheLastStepOrTheChosenOne) {
  const StepTimeline last = read(two_stages());
  EXPECT_EQ(last.step, 2);
  EXPECT_NEAR(last.seconds, 0.110, 1e-9);
  ASSERT_EQ(last.ranks.size(), 2U);
  ASSERT_EQ(last.ranks[1].passes.size(), 4U);
  EXPECT_EQ(last.ranks[1].passes[2].action, (plan::Action{Direction::kForward, 1, 0}));
  EXPECT_NEAR(last.ranks[1].passes[2].time.begin, 0.045, 1e-9);
  EXPECT_NEAR(last.ranks[1].passes[2].time.end, 0.055, 1e-9);
  ASSERT_EQ(last.ranks[0].optimizer.size(), 1U);
  EXPECT_EQ(read(two_stages(), 1).step, 1);
  EXPECT_EQ(read(two_stages(), 1).ranks[0].passes.size(), 4U);
}

// Ranks begin a step at different times; an exchange that began before the step is cut off at its begin.
TEST(StepTimeline, SortsEventsByKind) {
  TraceText trace;
  for (const int64_t rank : {0, 1}) {
    const double begin = rank == 0 ? 10 : 0;
    trace.beside(rank, "all_gather stem over axis shard", -50, 30);
    trace.beside(rank, "send activations of micro-batch 0 over rank 0 to rank 1", 1, 30);
    trace.span(rank, "pass", "F0", 20, 40);
    trace.span(rank, "wait", "all_gather stem over axis shard", 22, 30);
    trace.span(rank, "wait", "receive gradients of micro-batch 0 over rank 1 to rank 0", 40, 60);
    trace.span(rank, "data", "wait for data", 12, 18);
    trace.span(rank, "step", "step 7", begin, 100);
  }
  const RankTimeline rank = read(trace).ranks[0];
  ASSERT_EQ(rank.exchanges.size(), 1U);
  EXPECT_NEAR(rank.exchanges[0].begin, 0.010, 1e-9);
  EXPECT_NEAR(rank.exchanges[0].end, 0.030, 1e-9);
  ASSERT_EQ(rank.exchange_waits.size(), 1U);
  EXPECT_NEAR(rank.exchange_waits[0].begin, 0.022, 1e-9);
  ASSERT_EQ(rank.stage_waits.size(), 1U);
  EXPECT_NEAR(rank.stage_waits[0].begin, 0.040, 1e-9);
  ASSERT_EQ(rank.data.size(), 1U);
  EXPECT_NEAR(rank.data[0].begin, 0.012, 1e-9);
}

TEST(StepTimeline, BubbleIsTheShareWithoutPasses) {
  for (const int64_t ranks_of_stage : {1, 3}) {
    const std::vector<double> bubbles = bubbles_of(read(two_stages(ranks_of_stage)), 2);
    ASSERT_EQ(bubbles.size(), 2U);
    EXPECT_NEAR(bubbles[0], 0.40, 1e-9);
    EXPECT_NEAR(bubbles[1], 0.30, 1e-9);
  }
}

// Means: forward 10 ms, backward 20 and 25 ms. By hand: stage 1 ends B1 at 10 + 10 + 25 + 10 + 25 = 80 ms,
// and stage 0 its own 20 ms later.
TEST(StepTimeline, ComparesTheStepWithItsSchedule) {
  for (const int64_t ranks_of_stage : {1, 3}) {
    StepTimeline step = read(two_stages(ranks_of_stage));
    const plan::Plan plan = make_plan(2 * ranks_of_stage, 2, 2);
    EXPECT_NEAR(schedule_time(step, plan).simulated, 0.100, 1e-9);
    EXPECT_NEAR(schedule_time(step, plan).measured, 0.100, 1e-9);
    step.ranks[0].passes[3].time = {0.090, 0.110};  // it waited for 5 ms
    EXPECT_NEAR(schedule_time(step, plan).simulated, 0.100, 1e-9);
    EXPECT_NEAR(schedule_time(step, plan).measured, 0.105, 1e-9);
  }
}

TEST(StepTimeline, RejectsWhatHasNoSuchStep) {
  for (const char* text : {"", "{", "[]", "7", R"({"traceEvent":[]})", R"({"traceEvents":[{"ph":"X")"}) {
    EXPECT_NE(
        error_text([&] { read_step_timeline(text, "t.json", {}); }).find("t.json cannot be read as a trace"),
        std::string::npos)
        << text;
  }
  for (const char* text :
       {R"({"traceEvents":[]})", R"({"traceEvents":[7,null,{"ph":3},{"ph":"X","ts":"1"}]})"}) {
    EXPECT_NE(error_text([&] { read_step_timeline(text, "t.json", {}); }).find("t.json has no step"),
              std::string::npos)
        << text;
  }
  EXPECT_EQ(error_text([] { read(two_stages(), 9); }),
            "[trace] --step is 9, which is not in trace.json: expected a traced step: 1, 2");
  TraceText without_pass;
  without_pass.span(0, "step", "step 3", 0, 10);
  EXPECT_NE(error_text([&] { read(without_pass); }).find("rank 0 has no forward or backward pass in step 3"),
            std::string::npos);
  TraceText without_rank_0;
  without_rank_0.span(1, "step", "step 3", 0, 10);
  EXPECT_NE(error_text([&] { read(without_rank_0); }).find("has step 3 of rank 1, but not of rank 0"),
            std::string::npos);
}

TEST(StepPicture, HasABoxForEachPassAtItsTime) {
  const std::string picture = draw_step("two", make_plan(2, 2, 2), read(two_stages()));
  EXPECT_EQ(count_of(picture, "<g class=\"rank\""), 2U);
  EXPECT_EQ(count_of(picture, "<g class=\"mesh-row\""), 2U);
  for (int64_t rank = 0; rank < 2; ++rank) {
    const std::string row = row_of(picture, rank);
    const std::vector<Rect> forward = boxes(row, "f"), backward = boxes(row, "b");
    ASSERT_EQ(forward.size(), 2U);
    ASSERT_EQ(backward.size(), 2U);
    size_t forwards = 0, backwards = 0;
    for (const auto& [name, begin, end] : kStages[rank]) {
      const Rect box = name[0] == 'F' ? forward[forwards++] : backward[backwards++];
      EXPECT_NEAR(box.x, kPlotLeft + kPlotWidth * begin / 110, 0.01) << name;
      EXPECT_NEAR(box.width, kPlotWidth * (end - begin) / 110, 0.01) << name;
      EXPECT_NE(row.find(concat('>', name, "</text>")), std::string::npos) << name;
    }
    ASSERT_EQ(areas(row, "o").size(), 1U);
    EXPECT_NEAR(areas(row, "o")[0].width, kPlotWidth * 3 / 110, 0.01);
  }
  EXPECT_NE(picture.find(">two: step 2, 110.0 ms</text>"), std::string::npos);
  EXPECT_NE(picture.find(">2 ranks, 2 stages, schedule 1f1b, 2 micro-batches, zero3, 2 units</text>"),
            std::string::npos);
}

TEST(StepPicture, SaysTheBubbleOfEachStage) {
  const std::string picture = draw_step("two", make_plan(2, 2, 2), read(two_stages()));
  EXPECT_LT(picture.find(">bubble 40.0 %<"), picture.find("id=\"rank-0\""));
  EXPECT_LT(picture.find("id=\"rank-0\""), picture.find(">bubble 30.0 %<"));
  EXPECT_LT(picture.find(">bubble 30.0 %<"), picture.find("id=\"rank-1\""));
  EXPECT_NE(picture.find("runs no pass; 33.3 % for equal stages"), std::string::npos);
  EXPECT_NE(picture.find("The passes take 100.0 ms, 1.00 times what their schedule takes"),
            std::string::npos);
}

// However short it is: neither left out nor joined with its neighbour.
TEST(StepPicture, DrawsEveryPassOfALongStep) {
  constexpr int64_t kMicroBatches = 400;
  TraceText trace;
  for (int64_t rank = 0; rank < 2; ++rank) {
    for (int64_t i = 0; i < kMicroBatches; ++i) {
      trace.span(rank, "pass", concat('F', i), static_cast<double>(i), static_cast<double>(i) + 0.01);
      trace.span(rank, "pass", concat('B', i), static_cast<double>(i) + 0.01, static_cast<double>(i) + 0.02);
    }
    trace.span(rank, "step", "step 1", 0, 400);
  }
  const std::string picture = draw_step("long", make_plan(2, 2, kMicroBatches), read(trace));
  for (int64_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(boxes(row_of(picture, rank), "f").size(), static_cast<size_t>(kMicroBatches));
    EXPECT_EQ(boxes(row_of(picture, rank), "b").size(), static_cast<size_t>(kMicroBatches));
  }
}

TEST(StepPicture, DrawsWaitsAndExchangesInTheirLanes) {
  TraceText trace = two_stages();
  trace.span(0, "wait", "receive gradients of micro-batch 0 over rank 1 to rank 0", 25, 45);
  trace.beside(0, "all_gather blocks.0 over axis shard", 5, 12);
  trace.beside(0, "all_gather blocks.1 over axis shard", 10, 20);
  trace.beside(0, "receive gradients of micro-batch 0 over rank 1 to rank 0", 5, 45);
  trace.span(0, "wait", "all_gather blocks.0 over axis shard", 5, 6);
  const std::string row = row_of(draw_step("two", make_plan(2, 2, 2), read(trace)), 0);
  const std::vector<Rect> waits = areas(row, "w"), exchanges = areas(row, "x");
  ASSERT_EQ(waits.size(), 2U);  // the first one is below a pass
  EXPECT_NEAR(waits[1].x, kPlotLeft + kPlotWidth * 25 / 110, 0.01);
  EXPECT_NEAR(waits[1].width, kPlotWidth * 20 / 110, 0.01);
  ASSERT_EQ(exchanges.size(), 1U);  // joined; the message between stages is none
  EXPECT_NEAR(exchanges[0].width, kPlotWidth * 15 / 110, 0.01);
  EXPECT_EQ(areas(row, "xw").size(), 1U);
  EXPECT_LT(row.find("class=\"w\""), row.find("class=\"f f0\"")) << "a wait would cover a pass";
}

TEST(StepPicture, LabelsPartsOfInterleavedStages) {
  plan::Plan plan = make_plan(2, 2, 2);
  plan.schedule = plan::Schedule::kInterleaved;
  plan.virtual_stages = 2;
  plan.units = {{.name = "stem"}, {.name = "blocks.0"}, {.name = "blocks.1"}, {.name = "head"}};
  plan.first_unit = {0, 1, 2, 3};
  TraceText trace;
  for (int64_t rank = 0; rank < 2; ++rank) {
    double at = 0;
    for (const char* name : {"F0.0", "F1.0", "F0.1", "F1.1", "B0.1", "B1.1", "B0.0", "B1.0"}) {
      trace.span(rank, "pass", name, at, at + 10);
      at += 10;
    }
    trace.span(rank, "step", "step 1", 0, 80);
  }
  const std::string picture = draw_step("parts", plan, read(trace)), row = row_of(picture, 1);
  EXPECT_EQ(count_of(row, "class=\"f f0\""), 2U);
  EXPECT_EQ(count_of(row, "class=\"f f1\""), 2U);
  EXPECT_EQ(count_of(row, "class=\"b b1\""), 2U);
  EXPECT_NE(row.find(">B1.0</text>"), std::string::npos);
  EXPECT_NE(picture.find("; 20.0 % for equal stages"), std::string::npos);
  EXPECT_NE(picture.find(">stem, blocks.1<"), std::string::npos);
}

TEST(StepPicture, PredictionHasNoTitleAndTheFirstRankOfEachStage) {
  const std::string picture = draw_prediction(make_plan(4, 2, 2), read(two_stages(2)));
  EXPECT_EQ(count_of(picture, "<g class=\"rank\""), 2U);
  EXPECT_NE(row_of(picture, 0), "");
  EXPECT_NE(row_of(picture, 2), "");
  EXPECT_EQ(count_of(picture, "<text class=\"title\""), 0U);
  EXPECT_NE(picture.find(">Of 4 ranks, the first rank of each stage is drawn.<"), std::string::npos);
  const std::string style =
      picture.substr(picture.find("<style>") + 8, picture.find("</style>") - picture.find("<style>") - 8);
  std::istringstream lines(style);
  for (std::string line; std::getline(lines, line);)
    EXPECT_TRUE(line.starts_with(".step ")) << "would style the page: " << line;
}

TEST(StepPicture, DrawsTheFirstRankOfEachStageAbove32Ranks) {
  const std::string small = draw_step("32", make_plan(32, 2, 2), read(two_stages(16)));
  EXPECT_EQ(count_of(small, "<g class=\"rank\""), 32U);
  EXPECT_EQ(small.find("first rank of each stage"), std::string::npos);
  const std::string large = draw_step("80", make_plan(80, 2, 2), read(two_stages(40)));
  EXPECT_EQ(count_of(large, "<g class=\"rank\""), 2U);
  EXPECT_NE(row_of(large, 0), "");
  EXPECT_NE(row_of(large, 40), "");
  EXPECT_NE(large.find(">Of 80 ranks, the first rank of each stage is drawn.<"), std::string::npos);
  EXPECT_EQ(count_of(large, ">and 8 more ranks<"), 2U);
  EXPECT_NE(large.find(">bubble 40.0 %<"), std::string::npos);
}

TEST(StepPicture, DrawsRunsWithoutAPipeline) {
  TraceText trace;
  trace.span(0, "pass", "F0", 0, 10);
  trace.span(0, "pass", "B0", 10, 30);
  trace.span(0, "step", "step 1", 0, 40);
  const std::string picture = draw_step("one", make_plan(1, 1, 0), read(trace));
  EXPECT_EQ(boxes(row_of(picture, 0), "f").size(), 1U);
  EXPECT_EQ(boxes(row_of(picture, 0), "b").size(), 1U);
  for (const char* text : {"bubble", "Bubble", ">stage", "id=\"mesh\""})
    EXPECT_EQ(picture.find(text), std::string::npos) << text;
}

TEST(StepPicture, EscapesTextAndIsDeterministic) {
  const std::string title = "a<b> & \"c\" 'd'\x01";
  const std::string picture = draw_step(title, make_plan(2, 2, 2), read(two_stages()));
  EXPECT_EQ(picture, draw_step(title, make_plan(2, 2, 2), read(two_stages())));
  EXPECT_NE(picture.find(">a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39; : step 2"), std::string::npos);
  EXPECT_EQ(picture.find("<b>"), std::string::npos);
  const std::string umlauts = draw_step(std::string(300, 'a') + "ä", make_plan(2, 2, 2), read(two_stages()));
  EXPECT_NE(umlauts.find(concat('>', std::string(69, 'a'), "…: step 2")), std::string::npos);
}

TEST(StepPicture, RejectsAStepOfAnotherPlan) {
  const auto error = [](const plan::Plan& plan) {
    return error_text([&] { draw_step("two", plan, read(two_stages())); });
  };
  EXPECT_NE(error(make_plan(4, 2, 2)).find("the trace has 2 ranks, the plan 4"), std::string::npos);
  EXPECT_NE(error(make_plan(2, 2, 3)).find("rank 0 has 4 passes in step 2, the plan 6"), std::string::npos);
}

TEST(MeshPanel, PlacesRanksInTheirGroups) {
  plan::Plan plan = make_plan(8, 2, 2, /*tensor=*/2);
  const MeshPosition near = mesh_position(plan, 7);
  EXPECT_EQ(near.tensor, 1);
  EXPECT_EQ(near.tensor_ranks, 2);
  EXPECT_EQ(near.data, 1);
  EXPECT_EQ(near.data_ranks, 2);
  for (plan::UnitPlan& unit : plan.units) unit.layout.adjacent = false;
  const MeshPosition far = mesh_position(plan, 6);  // groups 4,6 and 5,7
  EXPECT_EQ(far.tensor, 1);
  EXPECT_EQ(far.data, 0);
  const std::string row = mesh_panel(plan, 0).elements;
  EXPECT_EQ(count_of(row, "class=\"bracket\""), 4U);
  EXPECT_EQ(count_of(row, "class=\"square m0\""), 4U);
  EXPECT_EQ(count_of(row, "class=\"square m1\""), 4U);
  EXPECT_LT(row.find(">6</text>"), row.find(">5</text>"));
}

}  // namespace
}  // namespace tessera::monitor
