// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/plan_page.h"

#include <algorithm>
#include <map>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/plan_page_parts.h"
#include "tessera/monitor/html.h"
#include "tessera/monitor/number.h"
#include "tessera/monitor/report_parts.h"
#include "tessera/monitor/step_picture.h"
#include "tessera/plan/draw_schedule.h"

namespace tessera::cli {
namespace {

using monitor::escape_html;

constexpr size_t kMostPassesDrawn = 20'000;
constexpr size_t kLayoutColours = 8;

constexpr std::string_view kPlanStyle = R"css(
:root{--teal:#0e8a9c;--pink:#c23b7a;--brown:#8a5a2b;--olive:#7d7a1e}
@media (prefers-color-scheme:dark){:root{--teal:#43c2d4;--pink:#f285b5;--brown:#c9975f;--olive:#c4c05a}}
.prose{max-width:860px}.prose p{margin:0 0 12px}
.soft{color:var(--soft);font-size:13px}
p.soft{margin:10px 0 0}
pre.command{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:12px 16px;margin:0 0 8px}
details.words,details.more{margin-top:14px}
.words dl{margin:0;padding:0 18px 12px}.words div{display:grid;grid-template-columns:minmax(110px,190px) 1fr;gap:14px;padding:7px 0;
border-top:1px solid var(--grid)}
.words dt{font-weight:600}.words dd{margin:0}
.more>summary{font-size:15px}.more .scroll{border:0;box-shadow:none}.more ul{margin:0;padding:0 18px 14px 36px}
.plain{border-collapse:collapse;width:100%;min-width:620px;font-size:14px}
.plain th{font-weight:500;color:var(--soft);text-align:left;font-size:13px;vertical-align:bottom}
.plain td,.plain th{padding:6px 10px 6px 0;border-bottom:1px solid var(--grid);vertical-align:top}
.plain tr:last-child td{border-bottom:0}.plain .n{text-align:right;white-space:nowrap}.plain .n+td:not(.n),.plain .n+th:not(.n){padding-left:12px}
.plain tr.reason td{border-bottom:1px solid var(--line);padding-top:0}.plain tr.plan td{border-bottom:0;padding-bottom:2px}
.plain tr.winner td:first-child b{color:var(--good)}.plain .out{color:var(--bad)}
.stack{display:flex;height:14px;border-radius:3px;overflow:hidden;background:var(--grid);min-width:180px}
.stack i{display:block;height:100%;background:currentColor;flex:none}
.reason .stack{margin:2px 0 4px}
.keys{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:13px;color:var(--soft);margin:0 0 10px}
.keys i{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:6px;vertical-align:-1px;background:currentColor}
.teal{color:var(--teal)}.pink{color:var(--pink)}.brown{color:var(--brown)}.olive{color:var(--olive)}
.pale-blue{color:var(--blue);opacity:.5}
i.hatch{color:var(--soft);background:repeating-linear-gradient(45deg,currentColor 0 1.5px,transparent 1.5px 5px)!important}
.strip{display:flex;gap:14px;align-items:center;padding:5px 0}.strip>span{flex:0 0 150px;font-size:13px;color:var(--soft)}
.strip>span b{display:block;color:var(--text)}
.strip>div{display:flex;flex-wrap:wrap;gap:2px}.strip i{display:block;width:15px;height:22px;border-radius:3px;background:currentColor}
.strip i.end{width:26px}
.l0{color:var(--blue)}.l1{color:var(--orange)}.l2{color:var(--green)}.l3{color:var(--violet)}.l4{color:var(--teal)}
.l5{color:var(--pink)}.l6{color:var(--brown)}.l7{color:var(--olive)}
.scroll svg.step{display:block;min-width:860px;width:100%;height:auto}
@media (prefers-color-scheme:dark){svg.step .paper{fill:var(--card)}svg.step text{fill:var(--text)}svg.step text.note{fill:var(--soft)}
svg.step text.mid:not(.note){fill:#161b26}svg.step .lane{fill:#242a34}svg.step path.grid{stroke:#3a4250}}
@media (max-width:640px){.words div{grid-template-columns:1fr;gap:2px}.strip>span{flex-basis:84px}.plain{font-size:13px}}
)css";

std::string header(const ExplainedPlan& explained) {
  const recipe::Recipe& recipe = explained.searched.of.recipe;
  return monitor::page_header(
      "Tessera plan", recipe.name,
      escape_html(concat(arch::describe(recipe.model), "; ", human_count(arch::parameter_count(recipe.model)),
                         " parameters")));
}

/// Of a pass, the times in which the rank does not compute.
void add_gaps(monitor::Interval gap, const std::vector<plan::Timing::Span>& passes,
              monitor::RankTimeline* rank) {
  for (const plan::Timing::Span& pass : passes) {
    const monitor::Interval inside{std::max(gap.begin, pass.begin), std::min(gap.end, pass.end)};
    if (inside.end > inside.begin) rank->exchange_waits.push_back(inside);
  }
}

/// Between passes a rank of a pipeline waits for other stages.
void add_stage_waits(const std::vector<plan::Timing::Span>& passes, monitor::RankTimeline* rank) {
  double end = rank->optimizer.empty() ? 0 : rank->optimizer.back().end;
  for (const plan::Timing::Span& pass : passes) {
    if (pass.begin > end) rank->stage_waits.push_back({end, pass.begin});
    end = std::max(end, pass.end);
  }
}

bool is_message_of_parameters(const planner::StepEvent& event) {
  return event.category == "gather" || event.category == "reduce";
}

/// What the first rank of a stage does besides its passes.
void add_events(const Prediction& prediction, int64_t stage, monitor::RankTimeline* rank) {
  const auto& passes = prediction.time.timing.stages[static_cast<size_t>(stage)];
  double computed = 0;
  for (const planner::StepEvent& event : prediction.time.events) {
    if (event.stage != stage) continue;
    const monitor::Interval time{event.begin, event.end};
    if (event.category == "optimizer") rank->optimizer.push_back(time);
    if (is_message_of_parameters(event) || event.category == "exchange") rank->exchanges.push_back(time);
    if (event.track != "compute") continue;
    if (event.begin > computed) add_gaps({computed, event.begin}, passes, rank);
    if (event.category == "exchange" || is_message_of_parameters(event)) rank->exchange_waits.push_back(time);
    computed = std::max(computed, event.end);
  }
  if (!passes.empty()) add_gaps({computed, passes.back().end}, passes, rank);
  if (prediction.question.plan.stages > 1) add_stage_waits(passes, rank);
  for (auto* times : {&rank->exchanges, &rank->exchange_waits, &rank->optimizer})
    std::ranges::stable_sort(*times, {}, &monitor::Interval::begin);
}

size_t passes_of(const Prediction& prediction) {
  size_t count = 0;
  for (const auto& stage : prediction.time.timing.stages) count += stage.size();
  return count;
}

/// Units of one layout and their colour.
class LayoutColours {
 public:
  std::string of(const plan::UnitPlan& unit) {
    const auto [found, is_new] = colours_.try_emplace(unit_text(unit), colours_.size());
    if (is_new) order_.push_back(found->first);
    return concat('l', found->second % kLayoutColours);
  }
  std::string legend() const {
    std::string out = "<p class=\"keys\">";
    for (size_t i = 0; i < order_.size(); ++i)
      out += concat("<span><i class=\"l", i % kLayoutColours, "\"></i>", escape_html(order_[i]), "</span>");
    return out + "</p>\n";
  }

 private:
  std::map<std::string, size_t> colours_;
  std::vector<std::string> order_;
};

std::string ranks_of_stage(const plan::Plan& plan, int64_t stage) {
  const int64_t first = stage * plan.stage_ranks(), last = first + plan.stage_ranks() - 1;
  return first == last ? concat("rank ", first) : concat("ranks ", first, "–", last);
}

std::string strip(const plan::Plan& plan, int64_t stage, LayoutColours* colours) {
  std::string boxes;
  for (int64_t part = 0; part < plan.virtual_stages; ++part) {
    const auto [begin, end] = plan::units_of_virtual_stage(plan, part * plan.stages + stage);
    for (size_t i = begin; i < end; ++i) {
      const plan::UnitPlan& unit = plan.units[i];
      const bool is_end = i == 0 || i + 1 == plan.units.size();
      boxes += concat("<i class=\"", colours->of(unit), is_end ? " end" : "", "\" title=\"",
                      escape_html(concat(unit.name, ": ", unit_text(unit))), "\"></i>");
    }
  }
  const std::string name =
      plan.stages > 1 ? concat("<b>stage ", stage, "</b>") : std::string("<b>all ranks</b>");
  return concat("<div class=\"strip\"><span>", name, ranks_of_stage(plan, stage), "</span><div>", boxes,
                "</div></div>\n");
}

}  // namespace

monitor::StepTimeline timeline_of(const Prediction& prediction) {
  const plan::Plan& plan = prediction.question.plan;
  monitor::StepTimeline timeline;
  timeline.seconds = prediction.time.seconds;
  for (int64_t stage = 0; stage < plan.stages; ++stage) {
    monitor::RankTimeline rank;
    for (const plan::Timing::Span& span : prediction.time.timing.stages[static_cast<size_t>(stage)])
      rank.passes.push_back({span.action, {span.begin, span.end}});
    timeline.ranks.insert(timeline.ranks.end(), static_cast<size_t>(plan.stage_ranks()), rank);
    add_events(prediction, stage, &timeline.ranks[static_cast<size_t>(stage * plan.stage_ranks())]);
  }
  return timeline;
}

std::string step_part(const ExplainedPlan& explained) {
  if (passes_of(explained.winner) > kMostPassesDrawn) {
    return monitor::section(
        "step", "The step over time", "",
        concat("<p class=\"soft\">A step of ", human_count(static_cast<int64_t>(passes_of(explained.winner))),
               " passes is not drawn.</p>\n"));
  }
  const plan::Plan& plan = explained.winner.question.plan;
  return monitor::section("step", "The step over time",
                          "as simulated; put the pointer on a pass to read its times",
                          concat("<div class=\"scroll\">\n",
                                 monitor::draw_prediction(plan, timeline_of(explained.winner)), "</div>\n"));
}

std::string layout_part(const ExplainedPlan& explained) {
  const plan::Plan& plan = explained.winner.question.plan;
  LayoutColours colours;
  std::string strips;
  for (int64_t stage = 0; stage < plan.stages; ++stage) strips += strip(plan, stage, &colours);
  return monitor::section("layout", "The layout of the units",
                          "a box for each unit, in the model's order; wide boxes: stem and head",
                          concat(colours.legend(), "<div class=\"scroll\">\n", strips, "</div>\n"));
}

std::string plan_file_part(const ExplainedPlan& explained) {
  return concat("<details id=\"plan-file\"><summary>plan.json</summary><pre><code>",
                escape_html(plan::to_json(explained.winner.question.plan)), "</code></pre></details>\n");
}

std::string plan_page(const ExplainedPlan& explained) {
  const std::string body =
      concat(header(explained), summary_part(explained), plans_part(explained), step_part(explained),
             stages_part(explained), layout_part(explained), variations_part(explained),
             counts_part(explained), constants_part(explained), plan_file_part(explained));
  return monitor::page(explained.searched.of.recipe.name, body, kPlanStyle);
}

}  // namespace tessera::cli
