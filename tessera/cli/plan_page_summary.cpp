// SPDX-License-Identifier: Apache-2.0
// The beginning of plan.html: what was found, in words.
#include <algorithm>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/plan_page_parts.h"
#include "tessera/monitor/html.h"
#include "tessera/monitor/number.h"
#include "tessera/monitor/report_parts.h"

namespace tessera::cli {
namespace {

using monitor::escape_html;

std::string counted(int64_t count, const std::string& what) {
  const bool ends_in_hiss = what.back() == 's' || what.ends_with("ch");
  return concat(human_count(count), ' ', what, count == 1 ? "" : ends_in_hiss ? "es" : "s");
}

/// What the ranks share of a unit's state.
const char* level_meaning(plan::Level level) {
  switch (level) {
    case plan::Level::kReplicate:
      return "every rank holds all weights, gradients and optimizer states";
    case plan::Level::kZero1:
      return "every rank holds all weights and gradients, and a part of the optimizer states";
    case plan::Level::kZero2:
      return "every rank holds all weights, and a part of the gradients and optimizer states";
    case plan::Level::kZero3:
      return "every rank holds a part of the weights, gradients and optimizer states, and gathers the "
             "weights of "
             "a unit when the unit computes";
  }
  return "";
}

/// The unit whose layout most units have.
const plan::UnitPlan& typical_unit(const plan::Plan& plan) {
  const auto alike = [&](const plan::UnitPlan& unit) {
    return std::ranges::count(plan.units, unit_text(unit), unit_text);
  };
  return *std::ranges::max_element(plan.units, {}, alike);
}

std::string found_sentence(const ExplainedPlan& explained) {
  const planner::FoundPlan& best = explained.searched.result.best.front();
  const int64_t ranks = explained.searched.question.ranks;
  return concat(
      "The fastest plan found trains <b>", monitor::rate_text(1 / best.seconds_per_image()),
      " images/s</b> on ", counted(ranks, "rank"),
      " (a rank is a process with its own GPU or CPU cores): a step, which updates the weights once "
      "from ",
      counted(best.batch, "image"), ", takes ", planner::seconds_text(best.time.seconds),
      ", and a rank needs ", human_bytes(best.most_memory()), " of the ",
      human_bytes(explained.searched.question.memory), " it may use.");
}

std::string stages_words(const planner::StepQuestion& question) {
  const plan::Plan& plan = question.plan;
  if (plan.stages == 1) return "All ranks hold the same layers";
  return concat("The layers are cut into ", plan.stages, " stages of ", counted(plan.stage_ranks(), "rank"),
                " each, through which images pass one stage after another");
}

std::string layout_sentence(const ExplainedPlan& explained) {
  const planner::StepQuestion& question = explained.winner.question;
  const plan::UnitPlan& unit = typical_unit(question.plan);
  std::string text =
      concat(stages_words(question), "; a step's images come in ",
             counted(question.accumulation, "micro-batch"), " of ", counted(question.batch, "image"),
             " per rank (a micro-batch is what passes through the layers at once)");
  if (unit.is_cut())
    text += concat("; ", unit.layout.tensor, " ranks compute each block together (tensor parallelism)");
  if (question.plan.stage_ranks() > 1)
    text += concat("; ", level_meaning(unit.level), " (", plan::to_string(unit.level), ")");
  if (unit.recomputes())
    text += "; activations are computed again in the backward pass, which saves memory and costs time";
  return text + '.';
}

std::string rivals_sentence(const ExplainedPlan& explained) {
  const planner::SearchResult& result = explained.searched.result;
  const std::string bound =
      concat("The space is the plans that the search may choose. Its bounds show: ", bound_text(result), ".");
  const planner::Alternative* next = next_kind(explained);
  if (next == nullptr) return concat("No plan of another kind fits. ", bound);
  return concat("The next kind of plan is ", escape_html(next->name), ", ", escape_html(next->reason), ". ",
                bound);
}

/// Over several lines that a shell joins; breaks are before options.
std::string broken_command(const std::string& command) {
  constexpr size_t kColumns = 96;
  constexpr std::string_view kOption = " --", kBreak = " \\\n   ";
  std::string out;
  size_t column = 0;
  for (size_t begin = 0; begin < command.size();) {
    const size_t end = std::min(command.find(kOption, begin + 1), command.size());
    if (column > 0 && column + end - begin > kColumns) {
      out += kBreak;
      column = kBreak.size();
    }
    out += command.substr(begin, end - begin);
    column += end - begin;
    begin = end;
  }
  return out;
}

std::string commands_text(const ExplainedPlan& explained) {
  if (explained.commands.empty()) return "";
  const char* where =
      is_one_host(explained.searched)
          ? ""
          : " these commands; a launcher such as srun or torchrun starts the training once for every rank";
  std::string text = concat("<p>Train it with", where, ":</p>\n");
  for (const std::string& command : explained.commands)
    text += concat("<pre class=\"command\"><code>", escape_html(broken_command(command)), "</code></pre>\n");
  return text;
}

struct Word {
  const char *name, *meaning;
};

/// In the order in which a reader meets them.
constexpr Word kWords[] = {
    {"unit", "A part of the model whose parameters are sent together: the stem, a block, or the head."},
    {"data parallel, replicate",
     "Every rank holds the whole model and computes other images; after the backward pass the gradients are "
     "summed over the ranks."},
    {"zero1, zero2, zero3",
     "As data parallel, but each rank keeps a part only: of the optimizer states (ZeRO-1), also of the "
     "gradients (ZeRO-2), also of the weights (ZeRO-3, FSDP). Saves memory; ZeRO-3 gathers weights anew for "
     "every pass. ranksN: the parts lie on N neighbouring ranks."},
    {"tensorN", "Tensor parallelism: N ranks compute each block together and exchange activations in it."},
    {"stage, pipeline",
     "A stage is several units in a row on ranks that hold no others. Each micro-batch goes from stage to "
     "stage; meanwhile other stages compute other micro-batches."},
    {"bubble", "Time in which a stage is idle because others compute what it needs."},
    {"1F1B, GPipe, interleaved",
     "Orders of a pipeline's passes: forward and backward in turn; all forward passes first; in turn with "
     "several groups of units on each rank (virtual stages)."},
    {"recompute",
     "Activations are not kept but computed again in the backward pass: less memory, more time."},
    {"prefetch", "How many units ahead weights are gathered (1 where it is not said)."}};

std::string words_text() {
  std::string rows;
  for (const Word& word : kWords)
    rows += concat("<div><dt>", word.name, "</dt><dd>", word.meaning, "</dd></div>\n");
  return concat("<details class=\"words\"><summary>Words of this page</summary><dl>\n", rows,
                "</dl></details>\n");
}

std::string waiting_card(const planner::FoundPlan& best) {
  const planner::StepParts& parts = best.time.stages[best.time.slowest].parts;
  const double busy = 100 * parts.compute / best.time.seconds;
  return monitor::card("Computing", monitor::fixed(busy, 1), "%",
                       best.question.plan.stages > 1 ? "of the step, busiest stage" : "of the step");
}

std::string cards(const ExplainedPlan& explained) {
  const planner::FoundPlan& best = explained.searched.result.best.front();
  const std::string memory = human_bytes(best.most_memory());
  const size_t space = memory.find(' ');
  return concat(
      "<div class=\"cards\">\n",
      monitor::card("Throughput", monitor::rate_text(1 / best.seconds_per_image()), "images/s",
                    concat("predicted, ", counted(explained.searched.question.ranks, "rank"))),
      monitor::card("Step", planner::seconds_text(best.time.seconds), "", counted(best.batch, "image")),
      monitor::card("Memory of a rank", memory.substr(0, space), memory.substr(space + 1),
                    concat("of ", human_bytes(explained.searched.question.memory))),
      waiting_card(best),
      monitor::card("Sent by a rank", human_bytes(sent_bytes(explained, best)), "", "in a step"), "</div>\n");
}

}  // namespace

std::string summary_part(const ExplainedPlan& explained) {
  return concat(cards(explained),
                monitor::section("summary", "In short", "",
                                 concat("<div class=\"prose\">\n<p>", found_sentence(explained), "</p>\n<p>",
                                        layout_sentence(explained), "</p>\n<p>", rivals_sentence(explained),
                                        "</p>\n", commands_text(explained), "</div>\n", words_text())));
}

}  // namespace tessera::cli
