// SPDX-License-Identifier: Apache-2.0
// The tables of plan.html.
#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/plan_page_parts.h"
#include "tessera/monitor/chart.h"
#include "tessera/monitor/html.h"
#include "tessera/monitor/number.h"
#include "tessera/monitor/report_parts.h"
#include "tessera/plan/draw_schedule.h"

namespace tessera::cli {
namespace {

using monitor::escape_html;
using monitor::section;

constexpr size_t kMostConstants = 400;  // rows of a table

const planner::StepParts& slowest_parts(const planner::FoundPlan& plan) {
  return plan.time.stages[plan.time.slowest].parts;
}

std::string plan_words(const planner::FoundPlan& plan) {
  return escape_html(concat(frame_text(plan.question), "; ", layout_text(plan.question.plan)));
}

std::string named_plan(const std::string& name, const std::string& below) {
  return concat("<b>", escape_html(name), "</b><br><span class=\"soft\">", below, "</span>");
}

/// Rows of the table of plans: numbers, and below them where the time goes and what is lost.
class PlanRows {
 public:
  PlanRows(const ExplainedPlan& explained, double slowest) : explained_(explained), slowest_(slowest) {}

  void add(const char* style, const std::string& name, const planner::FoundPlan& plan, bool fits,
           const std::string& reason) {
    const auto number = [](const std::string& text) { return concat("<td class=\"n\">", text, "</td>"); };
    rows_ += concat("<tr class=\"plan ", style, "\"><td>", named_plan(name, plan_words(plan)), "</td>",
                    number(fits ? monitor::rate_text(1 / plan.seconds_per_image()) : "–"),
                    number(fits ? planner::seconds_text(plan.time.seconds) : "–"),
                    number(concat(fits ? "" : "<span class=\"out\">", human_bytes(plan.most_memory()),
                                  fits ? "" : "</span>")),
                    number(human_bytes(sent_bytes(explained_, plan))), "</tr>\n");
    const std::string picture =
        fits ? bar(pieces_of(slowest_parts(plan)), slowest_ * static_cast<double>(plan.batch)) : "";
    add_reason(picture + escape_html(reason));
  }
  void add_without(const std::string& name, const std::string& reason) {
    rows_ += concat("<tr class=\"plan\"><td colspan=\"5\"><b>", escape_html(name), "</b></td></tr>\n");
    add_reason(escape_html(reason));
  }
  const std::string& html() const { return rows_; }

 private:
  void add_reason(const std::string& content) {
    rows_ += concat("<tr class=\"reason\"><td colspan=\"5\">", content, "</td></tr>\n");
  }
  const ExplainedPlan& explained_;
  const double slowest_;  // seconds of an image
  std::string rows_;
};

std::string winner_reason(const ExplainedPlan& explained) {
  return explained.searched.question.layer_by_layer
             ? "the fastest plan found; units may have different layouts"
             : "the fastest plan found; all blocks have one layout";
}

std::vector<std::string> stage_row(const Prediction& winner, int64_t stage, double memory) {
  const auto i = static_cast<size_t>(stage);
  const plan::Plan& plan = winner.question.plan;
  const planner::StepParts& parts = winner.time.stages[i].parts;
  const double standing = 100 * parts.bubble / winner.time.seconds;
  return {plan.stages > 1 ? concat("<b>", stage, "</b>") : std::string("<b>all</b>"),
          escape_html(plan::stage_text(plan, stage)),
          human_bytes(winner.memory[i].total()),
          bar(pieces_of(winner.memory[i]), memory),
          planner::seconds_text(parts.compute),
          monitor::print("%.1f %%", standing),
          bar(pieces_of(parts), winner.time.seconds)};
}

/// All numbers of the bars.
std::string numbers_of_stages(const Prediction& winner) {
  std::vector<std::vector<std::string>> rows;
  for (size_t i = 0; i < winner.time.stages.size(); ++i) {
    const std::string stage = std::to_string(i);
    for (const BarPiece& piece : pieces_of(winner.memory[i])) rows.push_back({stage, piece.name, piece.text});
    for (const BarPiece& piece : pieces_of(winner.time.stages[i].parts))
      rows.push_back({stage, piece.name, piece.text});
  }
  return concat("<details class=\"more\"><summary>All numbers of the stages</summary>",
                table({{"stage"}, {"part"}, {"value", true}}, rows), "</details>\n");
}

std::vector<std::string> variation_row(const planner::Variation& variation, double step) {
  const auto compared = [&](double seconds) {
    return concat(planner::seconds_text(seconds), " <span class=\"soft\">(",
                  monitor::print("%+.1f", 100 * (seconds / step - 1)), " %)</span>");
  };
  return {
      escape_html(variation.change),
      variation.kept_seconds ? compared(*variation.kept_seconds) : "<span class=\"out\">does not fit</span>",
      variation.best ? compared(variation.best->time.seconds) : "–", escape_html(change_text(variation))};
}

std::vector<std::string> count_row(const planner::RankCount& count) {
  if (!count.best) return {human_count(count.ranks), "–", "–", "–", escape_html(count.reason)};
  return {human_count(count.ranks), monitor::rate_text(count.images_per_second),
          monitor::fixed(count.images_per_rank_hour, 0), monitor::print("%.1f %%", 100 * count.efficiency),
          plan_words(*count.best)};
}

std::string counts_chart(const planner::Explanation& explanation) {
  monitor::Curve curve{"images per rank-hour", "blue", monitor::Curve::kDots, {}};
  for (const planner::RankCount& count : explanation.counts) {
    if (!count.best) continue;
    curve.points.x.push_back(static_cast<double>(count.ranks));
    curve.points.y.push_back(count.images_per_rank_hour);
  }
  if (curve.points.x.size() < 2) return "";
  monitor::Chart chart;
  chart.title = "Images per rank-hour";
  chart.unit = "over the number of ranks";
  chart.from_zero = true;
  chart.last_step = curve.points.x.back();
  chart.across = "ranks";
  chart.curves = {curve};
  return concat("<div class=\"charts\">\n", monitor::render(chart), "</div>\n");
}

std::string more(const std::string& title, const std::string& body) {
  return concat("<details class=\"more\"><summary>", title, "</summary>", body, "</details>\n");
}

std::string list(const std::vector<std::string>& sentences) {
  std::string out;
  for (const std::string& sentence : sentences) out += concat("<li>", escape_html(sentence), "</li>\n");
  return concat("<ul>\n", out, "</ul>\n");
}

std::string times_table(const planner::Profile& profile) {
  std::vector<std::vector<std::string>> rows;
  for (const planner::UnitTimes& unit : profile.units) {
    if (rows.size() == kMostConstants) break;
    rows.push_back({escape_html(unit.kind), std::to_string(unit.tensor), std::to_string(unit.batch),
                    plan::to_string(unit.recompute), planner::seconds_text(unit.forward),
                    planner::seconds_text(unit.backward), monitor::print("%.1f %%", 100 * unit.spread)});
  }
  return table({{"kind of unit"},
                {"tensor degree", true},
                {"images of a rank", true},
                {"recompute"},
                {"forward", true},
                {"backward", true},
                {"spread", true}},
               rows);
}

std::string links_table(const planner::Profile& profile) {
  std::vector<std::vector<std::string>> rows;
  for (const planner::LinkTimes& link : profile.links) {
    if (rows.size() == kMostConstants) break;
    const std::string hosts = link.in_host > 1 ? concat(", ", link.in_host, " on each host") : "";
    rows.push_back({escape_html(link.operation), escape_html(link.kind + hosts), escape_html(link.transport),
                    std::to_string(link.ranks), monitor::print("%.1f", 1e6 * link.latency),
                    monitor::print("%.3g", link.bytes_per_second / 1e9),
                    monitor::print("%.1f %%", 100 * link.spread)});
  }
  return table({{"operation"},
                {"ranks of the group"},
                {"transport"},
                {"number", true},
                {"latency, µs", true},
                {"GB/s of a rank", true},
                {"spread", true}},
               rows);
}

std::string beyond(size_t rows) {
  return rows > kMostConstants ? concat(", the first ", kMostConstants, " of ", rows) : "";
}

void add_provenance(const planner::Provenance& from, monitor::ReportInput* input) {
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) input->facts.emplace_back(name, value);
  };
  add(from.is_assumed() ? "constants" : "measured on",
      from.is_assumed() ? "assumed, nothing measured" : from.host);
  add("device", from.device);
  add("processor", from.processor);
  add("build", from.build);
  add("date", from.date);
  add("sources", from.assumed);
  add("messages and slowdowns, assumed", from.assumed_links);
  if (from.is_of_gpu())
    add("outputs of norms and GELUs",
        from.keeps_activations ? "kept for backward" : "made again in backward");
  add("compute dtype", from.compute);
  add("threads of a rank", from.names_machine() ? std::to_string(from.threads) : "");
  add("ranks of a host", std::to_string(from.ranks_of_host));
  add("rounds", from.is_assumed() ? "" : std::to_string(from.rounds));
  add("passes that something else slowed",
      from.slowed > 0 ? monitor::print("%.0f %%", 100 * from.slowed) : "");
}

void add_step_constants(const planner::Profile& profile, monitor::ReportInput* input) {
  const auto nanoseconds = [](double seconds) { return monitor::print("%.3g ns", 1e9 * seconds); };
  input->facts.emplace_back("a value updated", nanoseconds(profile.optimizer_seconds));
  input->facts.emplace_back("a gradient written in fp32", nanoseconds(profile.widen_seconds));
  input->facts.emplace_back("a micro-batch's gradient added", nanoseconds(profile.accumulate_seconds));
  input->facts.emplace_back("a micro-batch's sum over ranks added", nanoseconds(profile.add_sum_seconds));
  if (profile.unit_lag > 0 || profile.micro_batch_lag > 0) {
    input->facts.emplace_back("waiting for the slowest rank behind each unit, behind a micro-batch",
                              monitor::print("%.1f %%, %.1f %% of computing", 100 * profile.unit_lag,
                                             100 * profile.micro_batch_lag));
  }
  input->facts.emplace_back("an image loaded", planner::seconds_text(profile.data_seconds));
  input->facts.emplace_back("rest of a step", planner::seconds_text(profile.step_seconds));
  input->facts.emplace_back("passes beside messages take",
                            monitor::print("%.2f times as long", profile.compute_slowdown));
  input->facts.emplace_back("messages beside passes take",
                            monitor::print("%.2f times as long", profile.link_slowdown));
  input->facts.emplace_back("passes while all ranks of a host compute take",
                            monitor::print("%.3f times as long", profile.busy_ranks_slowdown));
}

}  // namespace

std::string plans_part(const ExplainedPlan& explained) {
  const planner::FoundPlan& winner = explained.searched.result.best.front();
  double slowest = winner.seconds_per_image();
  std::vector<std::vector<BarPiece>> bars = {pieces_of(slowest_parts(winner))};
  for (const planner::Alternative& one : explained.explanation.alternatives) {
    if (!one.fits()) continue;
    slowest = std::max(slowest, one.plan->seconds_per_image());
    bars.push_back(pieces_of(slowest_parts(*one.plan)));
  }
  PlanRows rows(explained, slowest);
  rows.add("winner", "winner", winner, true, winner_reason(explained));
  for (const planner::Alternative& one : explained.explanation.alternatives) {
    one.plan ? rows.add("", one.name, *one.plan, one.fits(), one.reason)
             : rows.add_without(one.name, one.reason);
  }
  return section(
      "plans", "Why this plan", "the fastest of each kind; bars: seconds of the stage that is idle least",
      concat(
          bar_legend("Time:", bars),
          "<div class=\"scroll\"><table class=\"plain\"><thead><tr><th>Plan</th><th class=\"n\">images/s</th>"
          "<th class=\"n\">step</th><th class=\"n\">memory of a rank</th><th class=\"n\">sent by a rank</th>"
          "</tr></thead>\n<tbody>\n",
          rows.html(),
          "</tbody></table></div>\n<p class=\"soft\">All blocks of a kind have the same layout; ",
          escape_html(search_text(explained.searched.result)), ".</p>\n"));
}

std::string stages_part(const ExplainedPlan& explained) {
  const Prediction& winner = explained.winner;
  const double memory = explained.searched.question.memory;
  std::vector<std::vector<std::string>> rows;
  std::vector<std::vector<BarPiece>> memories, times;
  for (int64_t stage = 0; stage < winner.question.plan.stages; ++stage)
    rows.push_back(stage_row(winner, stage, memory));
  for (const plan::Memory& one : winner.memory) memories.push_back(pieces_of(one));
  for (const planner::StageTime& one : winner.time.stages) times.push_back(pieces_of(one.parts));
  return section("stages", "The stages",
                 concat("memory bars: of ", human_bytes(memory), "; time bars: of the step"),
                 concat(bar_legend("Memory:", memories), bar_legend("Time:", times),
                        table({{"Stage"},
                               {"ranks and units"},
                               {"memory of a rank", true},
                               {"by part"},
                               {"compute", true},
                               {"bubble", true},
                               {"the step by part"}},
                              rows),
                        numbers_of_stages(winner)));
}

std::string variations_part(const ExplainedPlan& explained) {
  const double step = explained.winner.time.seconds;
  std::vector<std::vector<std::string>> rows;
  for (const planner::Variation& one : explained.explanation.variations)
    rows.push_back(variation_row(one, step));
  return section(
      "sensitivity", "If the machine were another one",
      "steps compared with the winner's; links keep their latency",
      table({{"change"}, {"the winner's step", true}, {"the best plan's step", true}, {"best plan"}}, rows));
}

std::string counts_part(const ExplainedPlan& explained) {
  const planner::Explanation& explanation = explained.explanation;
  std::vector<std::vector<std::string>> rows;
  for (const planner::RankCount& count : explanation.counts) rows.push_back(count_row(count));
  const std::string base = explanation.base_ranks == 0
                               ? ""
                               : concat("; efficiency: against ", human_count(explanation.base_ranks),
                                        explanation.base_ranks == 1 ? " rank" : " ranks");
  return section(
      "ranks", "How many ranks are worth renting",
      concat("the fastest plan with one layout for all blocks; ", human_count(explained.winner.sizes.batch),
             " images in a step whatever the ranks", base),
      concat("<p class=\"prose\">", escape_html(renting_text(explanation)), "</p>\n",
             counts_chart(explanation), "<p></p>\n",
             table({{"ranks", true},
                    {"images/s", true},
                    {"images per rank-hour", true},
                    {"efficiency", true},
                    {"plan"}},
                   rows)));
}

std::string constants_part(const ExplainedPlan& explained) {
  const planner::Profile& profile = explained.searched.of.profile;
  monitor::ReportInput input;
  add_provenance(profile.provenance, &input);
  add_step_constants(profile, &input);
  std::vector<std::string> assumed = explained.winner.time.assumptions;
  assumed.insert(assumed.end(), explained.searched.notes.begin(), explained.searched.notes.end());
  std::string body = monitor::facts_list(input.facts);
  body += more(concat("Times of units", beyond(profile.units.size())), times_table(profile));
  if (!profile.links.empty())
    body += more(concat("Messages", beyond(profile.links.size())), links_table(profile));
  if (!assumed.empty()) body += more("What was assumed, and kept of the recipe", list(assumed));
  body += more("What the search leaves out", list(explained.searched.result.restrictions));
  return section("constants", "What the numbers come from", "the profile", body);
}

}  // namespace tessera::cli
