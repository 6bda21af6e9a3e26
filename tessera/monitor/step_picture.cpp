// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/step_picture.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/monitor/mesh_panel.h"
#include "tessera/monitor/number.h"
#include "tessera/monitor/picture_frame.h"
#include "tessera/monitor/series.h"
#include "tessera/monitor/svg.h"
#include "tessera/plan/levels_text.h"
#include "tessera/plan/spans.h"

namespace tessera::monitor {
namespace {

constexpr double kRow = 36, kStageGap = 8, kLane = 20, kThinLane = 6;  // heights
constexpr double kHeader = 62, kHeading = 26;
constexpr double kOfDigit = 6.6;  // width of a character in a box
constexpr int64_t kTints = 4;     // colours of a direction: one for each part of a rank
constexpr double kMilli = 1e3;

constexpr const char* kStyle = R"svg(<style>
.step text { font: 12px 'DejaVu Sans', Verdana, Arial, sans-serif; fill: #24292f; }
.step .title { font-size: 16px; font-weight: bold; }
.step .heading { font-size: 13px; font-weight: bold; }
.step .name { font-weight: bold; }
.step .note { font-size: 11px; fill: #57606a; }
.step .small { font-size: 9px; }
.step .mid { font-size: 11px; text-anchor: middle; }
.step .end { text-anchor: end; }
.step .lane { fill: #f3f4f6; }
.step .f, .step .b, .step .o, .step .d { stroke: #fff; stroke-width: .6; }
.step .f0 { fill: #9ecae1; } .step .f1 { fill: #6baed6; } .step .f2 { fill: #c6dbef; } .step .f3 { fill: #4292c6; }
.step .b0 { fill: #fdbe73; } .step .b1 { fill: #f79646; } .step .b2 { fill: #fde0b8; } .step .b3 { fill: #e6771d; }
.step .o { fill: #bcaadb; }
.step .d { fill: #d8d3a5; }
.step .x { fill: #a6d8a8; }
.step .xw { fill: #2c8a43; }
.step .w { fill: url(#hatch); }
.step .grid { stroke: #d0d7de; stroke-width: 1; fill: none; }
.step .bracket { stroke: #57606a; stroke-width: 1.4; fill: none; }
.step .square { stroke: #57606a; stroke-width: .8; }
.step .alone { fill: #eaeef2; }
.step .m0 { fill: #cfe3f5; } .step .m1 { fill: #fbd9b5; } .step .m2 { fill: #cdeacb; } .step .m3 { fill: #f6cfd6; }
.step .m4 { fill: #ddd3ef; } .step .m5 { fill: #f3ecb3; } .step .m6 { fill: #c6ebea; } .step .m7 { fill: #e3d5c8; }
</style>
<defs><pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<path d="M0 0V5" stroke="#b6bec8" stroke-width="2"/></pattern></defs>
)svg";

/// Joins intervals with less than `gap` seconds between them.
std::vector<Interval> joined(const std::vector<Interval>& rising, double gap) {
  std::vector<Interval> out;
  for (const Interval& one : rising) {
    if (out.empty() || one.begin > out.back().end + gap) {
      out.push_back(one);
    } else {
      out.back().end = std::max(out.back().end, one.end);
    }
  }
  return out;
}

std::string count_text(int64_t count, const std::string& what) {
  return concat(count, ' ', what, count == 1 ? "" : "s");
}

std::string milliseconds(double seconds) { return concat(fixed(kMilli * seconds, 1), " ms"); }

/// The passes that make up a step of a pipeline; 0: the plan does not say.
int64_t passes_of_plan(const plan::Plan& plan) {
  return plan.stages > 1 ? 2 * plan.micro_batches * plan.virtual_stages : 0;
}

void check_match(const plan::Plan& plan, const StepTimeline& timeline) {
  const auto fail = [](const std::string& problem) {
    user_error({.where = "trace",
                .problem = concat("trace.json and plan.json are of different starts of the run: ", problem),
                .expected = "both of the same start",
                .hint = "trace a step of this run again"});
  };
  const auto ranks = static_cast<int64_t>(timeline.ranks.size());
  if (ranks != plan.world)
    fail(concat("the trace has ", count_text(ranks, "rank"), ", the plan ", plan.world));
  for (int64_t rank = 0; rank < ranks && plan.stages > 1; ++rank) {
    const auto passes = static_cast<int64_t>(timeline.ranks[static_cast<size_t>(rank)].passes.size());
    if (passes != passes_of_plan(plan)) {
      fail(concat("rank ", rank, " has ", passes, " passes in step ", timeline.step, ", the plan ",
                  passes_of_plan(plan)));
    }
  }
}

/// The schedule below `top`.
class Schedule {
 public:
  Schedule(const plan::Plan& plan, const StepTimeline& timeline, double top, bool all_ranks)
      : plan_(plan),
        timeline_(timeline),
        bubbles_(bubbles_of(timeline, plan.stages)),
        per_second_((kPlotRight - kPlotLeft) / std::max(timeline.seconds, 1e-9)),
        draws_all_(all_ranks),
        y_(top) {}

  Panel draw() {
    const double top = y_;
    std::string out = concat("<g id=\"schedule\">\n", heading());
    y_ += kHeading;
    const double rows_top = y_;
    std::string rows;
    for (int64_t stage = 0; stage < plan_.stages; ++stage) rows += stage_rows(stage);
    out += axis(rows_top) + rows;
    out += notes() + "</g>\n";
    return {out, y_ - top};
  }

 private:
  double x_of(double seconds) const { return kPlotLeft + per_second_ * seconds; }

  std::string heading() const {
    struct Sample {
      std::string style, name;
      double height = 12;
    };
    const std::vector<Sample> samples = {{"f", "forward"},
                                         {"b", "backward"},
                                         {"o", "optimizer"},
                                         {"d", "wait for data"},
                                         {"w", "wait for other ranks"},
                                         {"x", "gather, reduction", kThinLane},
                                         {"xw", "waiting for it", kThinLane}};
    std::string out = svg::text({kMargin, y_ + 12}, "heading", "Schedule");
    double x = kPlotLeft;
    for (const Sample& sample : samples) {
      const bool has_tints = sample.style == "f" || sample.style == "b";
      const int64_t tints = has_tints ? std::min(plan_.virtual_stages, kTints) : 1;
      const double width = 16 / static_cast<double>(tints);
      for (int64_t tint = 0; tint < tints; ++tint) {
        out += svg::rect(
            {x + width * static_cast<double>(tint), y_ + 8 - sample.height / 2, width, sample.height},
            has_tints ? concat(sample.style, ' ', sample.style, tint) : sample.style);
      }
      out += svg::text({x + 20, y_ + 12}, "note", sample.name);
      x += 28 + 6.5 * static_cast<double>(sample.name.size());
    }
    return out;
  }

  std::string stage_rows(int64_t stage) {
    const int64_t ranks = plan_.stage_ranks(), first = stage * ranks;
    std::string out = "<g class=\"stage\">\n";
    if (plan_.stages > 1) {
      const double bubble = bubbles_[static_cast<size_t>(stage)];
      out += svg::text({kMargin, y_ + 13}, "name", concat("stage ", stage));
      out += svg::text({kMargin, y_ + 27}, "note", concat("bubble ", print("%.1f", 100 * bubble), " %"));
    }
    for (int64_t rank = first; rank < first + (draws_all_ ? ranks : 1); ++rank) {
      out += rank_row(rank);
      y_ += kRow;
    }
    y_ += kStageGap;
    return out + "</g>\n";
  }

  std::string rank_row(int64_t rank) const {
    const RankTimeline& row = timeline_.ranks[static_cast<size_t>(rank)];
    std::string out = concat("<g class=\"rank\" id=\"rank-", rank, "\">\n");
    const MeshPosition place = mesh_position(plan_, rank);
    std::vector<std::string> words;
    if (place.tensor_ranks > 1) words.push_back(concat("tensor ", place.tensor));
    if (place.data_ranks > 1) words.push_back(concat("data ", place.data));
    const double middle = words.empty() ? 18 : 13;
    out += svg::text({kPlotLeft - 10, y_ + middle}, "end", concat("rank ", rank));
    if (!words.empty()) out += svg::text({kPlotLeft - 10, y_ + 27}, "note end", join(words, ", "));
    out += svg::rect({kPlotLeft, y_ + 2, kPlotRight - kPlotLeft, kLane}, "lane");
    std::vector<Interval> waits = row.stage_waits;
    waits.insert(waits.end(), row.exchange_waits.begin(), row.exchange_waits.end());
    std::ranges::sort(waits, {}, &Interval::begin);
    out += areas(waits, "w", 2, kLane) + areas(row.data, "d", 2, kLane) + areas(row.optimizer, "o", 2, kLane);
    for (const TimedPass& pass : row.passes) out += pass_box(pass, rank);
    constexpr double kBelow = 2 + kLane + 1;
    return concat(out, areas(row.exchanges, "x", kBelow, kThinLane),
                  areas(row.exchange_waits, "xw", kBelow, kThinLane), "</g>\n");
  }

  /// Rectangles as one path. What is too narrow to see is left out, after neighbours are joined.
  std::string areas(const std::vector<Interval>& rising, const char* style, double below,
                    double height) const {
    constexpr double kNarrow = 0.4;
    std::string data;
    for (const Interval& one : joined(rising, kNarrow / per_second_)) {
      const double width = per_second_ * one.seconds();
      if (width < kNarrow) continue;
      data += concat('M', svg::length(x_of(one.begin)), ' ', svg::length(y_ + below), 'h', svg::length(width),
                     'v', svg::length(height), 'h', svg::length(-width), 'z');
    }
    return data.empty() ? "" : svg::path(style, data);
  }

  std::string pass_box(const TimedPass& pass, int64_t rank) const {
    constexpr double kNarrowest = 0.5;
    const bool forward = pass.action.direction == plan::Direction::kForward;
    const std::string name = plan::to_string(pass.action, plan_.virtual_stages);
    const double x = x_of(pass.time.begin);
    const double width = std::max(per_second_ * pass.time.seconds(), kNarrowest);
    const char letter = forward ? 'f' : 'b';
    std::string out =
        svg::rect({x, y_ + 2, width, kLane}, concat(letter, ' ', letter, pass.action.part % kTints),
                  concat(name, " of rank ", rank, ": ", milliseconds(pass.time.begin), " to ",
                         milliseconds(pass.time.end)));
    // Where there is no room for all of it, the colour says direction and part.
    for (const std::string& label : {name, name.substr(1), std::to_string(pass.action.micro_batch)}) {
      if (kOfDigit * static_cast<double>(label.size()) + 3 > width) continue;
      return out + svg::text({x + width / 2, y_ + 16}, "mid", label);
    }
    return out;
  }

  std::string axis(double top) {
    const Axis axis = make_axis(0, kMilli * timeline_.seconds, 10, false);
    std::string lines, labels;
    const double bottom = y_;
    for (const double tick : axis.ticks) {
      if (tick > kMilli * timeline_.seconds) continue;
      const double x = x_of(tick / kMilli);
      lines += concat('M', svg::length(x), ' ', svg::length(top), 'V', svg::length(bottom));
      labels += svg::text({x, bottom + 12}, "note mid", tick_text(tick, axis.spacing));
    }
    y_ += 18;
    return concat(svg::path("grid", lines), labels,
                  svg::text({kPlotLeft - 10, bottom + 12}, "note end", "ms"));
  }

  std::string notes() {
    std::vector<std::string> lines;
    if (!draws_all_ && plan_.world > plan_.stages) {
      lines.push_back(plan_.stages > 1
                          ? concat("Of ", plan_.world, " ranks, the first rank of each stage is drawn.")
                          : concat("Of ", plan_.world, " ranks, rank 0 is drawn."));
    }
    if (plan_.stages > 1) {
      const double behind = static_cast<double>(plan_.stages - 1) / static_cast<double>(plan_.virtual_stages);
      const double expected = behind / (static_cast<double>(plan_.micro_batches) + behind);
      lines.push_back(
          concat("Bubble: share of the time from the first pass to the last in which a stage runs no pass; ",
                 print("%.1f", 100 * expected), " % for equal stages and messages that take no time."));
      const ScheduleTime time = schedule_time(timeline_, plan_);
      lines.push_back(concat("The passes take ", print("%.1f", 1000 * time.measured), " ms, ",
                             print("%.2f", time.measured / time.simulated),
                             " times what their schedule takes at their mean times and without messages."));
    }
    std::string out;
    for (const std::string& line : lines) {
      out += svg::text({kMargin, y_ + 14}, "note", line);
      y_ += 17;
    }
    return out;
  }

  const plan::Plan& plan_;
  const StepTimeline& timeline_;
  const std::vector<double> bubbles_;
  const double per_second_;
  const bool draws_all_;  // ranks; else the first one of each stage
  double y_;
};

std::string layout_text(const plan::Plan& plan, const StepTimeline& timeline) {
  std::vector<std::string> words = {count_text(plan.world, "rank")};
  if (plan.stages > 1) {
    words.push_back(count_text(plan.stages, "stage"));
    words.push_back(concat("schedule ", plan::to_string(plan.schedule)));
    if (plan.virtual_stages > 1) words.push_back(concat(plan.virtual_stages, " virtual stages of each rank"));
  }
  const auto forwards = std::ranges::count(timeline.ranks.front().passes, plan::Direction::kForward,
                                           [](const TimedPass& pass) { return pass.action.direction; });
  const int64_t micro_batches = forwards / plan.virtual_stages;
  words.push_back(concat(micro_batches, micro_batches == 1 ? " micro-batch" : " micro-batches"));
  words.push_back(plan::levels_text(plan));
  return join(words, ", ");
}

/// `heading` is above mesh and schedule. `title`: for readers of the screen.
std::string document(const std::string& title, const Panel& heading, const plan::Plan& plan,
                     const StepTimeline& timeline, bool all_ranks) {
  std::string body = heading.elements;
  double y = heading.height;
  if (plan.world > 1) {
    const Panel mesh = mesh_panel(plan, y);
    body += mesh.elements;
    y += mesh.height + 6;
  }
  const Panel schedule = Schedule(plan, timeline, y, all_ranks).draw();
  body += schedule.elements;
  y += schedule.height + 12;
  const svg::Box page{0, 0, kWidth, y};
  return concat("<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"step\" viewBox=\"0 0 ",
                svg::length(kWidth), ' ', svg::length(y), "\" width=\"", svg::length(kWidth), "\" height=\"",
                svg::length(y), "\">\n", "<title>", escape_html(title), "</title>\n", kStyle,
                "<rect class=\"paper\" fill=\"#fff\" ", svg::attributes(page), "/>\n", body, "</svg>\n");
}

}  // namespace

std::string draw_step(const std::string& title, const plan::Plan& plan, const StepTimeline& timeline) {
  check_match(plan, timeline);
  constexpr size_t kMostOfTitle = 70, kMostOfLayout = 150;  // characters
  const std::string step = concat("step ", timeline.step, ", ", milliseconds(timeline.seconds));
  const std::string heading =
      svg::text({kMargin, 28}, "title", concat(svg::shortened(title, kMostOfTitle), ": ", step)) +
      svg::text({kMargin, 47}, "note", svg::shortened(layout_text(plan, timeline), kMostOfLayout));
  return document(concat(title, ": ", step), {heading, kHeader}, plan, timeline, plan.world <= kMostRanks);
}

std::string draw_prediction(const plan::Plan& plan, const StepTimeline& timeline) {
  check_match(plan, timeline);
  return document("Mesh and schedule", {"", kMargin}, plan, timeline, /*all_ranks=*/false);
}

}  // namespace tessera::monitor
