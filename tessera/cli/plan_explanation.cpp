// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/plan_explanation.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/monitor/number.h"
#include "tessera/plan/traffic.h"

namespace tessera::cli {
namespace {

using monitor::fixed;
using monitor::print;
using Json = nlohmann::ordered_json;

constexpr double kWorth = 0.9;  // of the most images per rank-hour

std::string count_text(int64_t count, const std::string& what) {
  return concat(human_count(count), ' ', what, count == 1 ? "" : "s");
}

std::string padded(std::string text, size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

Json json_of(const planner::FoundPlan& plan) {
  return {{"seconds", plan.time.seconds},
          {"images_per_second", 1 / plan.seconds_per_image()},
          {"batch", plan.batch},
          {"batch_per_rank", plan.question.batch},
          {"micro_batches", plan.question.accumulation},
          {"memory_bytes", static_cast<int64_t>(plan.most_memory())},
          {"plan", Json::parse(plan::to_json(plan.question.plan))}};
}

Json json_of(const planner::Alternative& alternative) {
  Json json = {{"name", alternative.name}, {"fits", alternative.fits()}, {"reason", alternative.reason}};
  if (alternative.missing > 0) json["missing_bytes"] = static_cast<int64_t>(alternative.missing);
  if (alternative.plan) json["found"] = json_of(*alternative.plan);
  return json;
}

Json json_of(const planner::Variation& variation) {
  Json json = {{"change", variation.change}, {"is_other_plan", variation.is_other}};
  if (variation.kept_seconds) json["kept_seconds"] = *variation.kept_seconds;
  if (variation.best) json["found"] = json_of(*variation.best);
  return json;
}

Json json_of(const planner::RankCount& count) {
  if (!count.best) return {{"ranks", count.ranks}, {"reason", count.reason}};
  return {{"ranks", count.ranks},
          {"images_per_second", count.images_per_second},
          {"images_per_rank_hour", count.images_per_rank_hour},
          {"efficiency", count.efficiency},
          {"found", json_of(*count.best)}};
}

void print_plan(const std::string& name, const planner::FoundPlan& plan, bool fits, std::ostream& out) {
  out << padded(fits ? monitor::rate_text(1 / plan.seconds_per_image()) : "-", 12)
      << padded(fits ? planner::seconds_text(plan.time.seconds) : "-", 10)
      << padded(human_bytes(plan.most_memory()), 12) << "  " << name << ": " << frame_text(plan.question)
      << "; " << layout_text(plan.question.plan) << '\n';
}

void print_alternative(const planner::Alternative& alternative, std::ostream& out) {
  if (alternative.plan) {
    print_plan(alternative.name, *alternative.plan, alternative.fits(), out);
  } else {
    out << padded("", 36) << alternative.name << '\n';
  }
  out << padded("", 36) << alternative.reason << '\n';
}

void print_variation(const planner::Variation& variation, std::ostream& out) {
  out << "  " << variation.change << ": ";
  out << (variation.kept_seconds ? "the winner takes " + planner::seconds_text(*variation.kept_seconds)
                                 : "the winner does not fit");
  if (!variation.best) {
    out << "; no plan fits\n";
  } else if (!variation.is_other) {
    out << " and stays the best\n";
  } else {
    out << "; best is " << change_text(variation) << ", "
        << planner::seconds_text(variation.best->time.seconds) << '\n';
  }
}

void print_count(const planner::RankCount& count, std::ostream& out) {
  out << padded(human_count(count.ranks), 8);
  if (!count.best) {
    out << "  " << count.reason << '\n';
    return;
  }
  out << padded(monitor::rate_text(count.images_per_second), 12)
      << padded(fixed(count.images_per_rank_hour, 0), 14)
      << padded(print("%.1f %%", 100 * count.efficiency), 10) << "  " << frame_text(count.best->question)
      << "; " << layout_text(count.best->question.plan) << '\n';
}

}  // namespace

ExplainedPlan explain_plan(const SearchRequest& request, const Here& here) {
  ExplainedPlan explained;
  explained.searched = search_plan(request, here);
  const SearchedPlan& searched = explained.searched;
  explained.explanation = planner::explain(searched.of.profile, searched.question, searched.result);
  planner::FoundPlan winner = searched.result.best.front();
  winner.question.record = true;
  explained.winner = prediction_of(searched, winner);
  return explained;
}

double sent_bytes(const ExplainedPlan& explained, const planner::FoundPlan& plan) {
  const planner::StepQuestion& question = plan.question;
  const arch::ModelConfig& model = explained.searched.of.profile.model;
  return plan::step_traffic(model, question.plan, question.inputs, question.accumulation, question.batch)
      .total();
}

const planner::Alternative* next_kind(const ExplainedPlan& explained) {
  const planner::FoundPlan& winner = explained.searched.result.best.front();
  const planner::Alternative* next = nullptr;
  for (const planner::Alternative& one : explained.explanation.alternatives) {
    if (!one.fits() || one.name == planner::kRunnerUp || one.plan->question.plan == winner.question.plan)
      continue;
    if (next == nullptr || one.plan->seconds_per_image() < next->plan->seconds_per_image()) next = &one;
  }
  return next;
}

std::string change_text(const planner::Variation& variation) {
  if (!variation.best) return "no plan fits";
  if (!variation.is_other) return "the same plan";
  const planner::StepQuestion& question = variation.best->question;
  return concat(frame_text(question), "; ", layout_text(question.plan));
}

std::string renting_text(const planner::Explanation& explanation) {
  const int64_t most = planner::most_ranks_worth(explanation.counts, 1);
  const int64_t worth = planner::most_ranks_worth(explanation.counts, kWorth);
  if (most == 0) return "No number of ranks has a plan whose blocks are all alike.";
  std::string text = concat("A rank-hour yields most images with ", count_text(most, "rank"), ".");
  const std::string share = print("%.0f", 100 * kWorth);
  if (worth > most)
    text += concat(" With ", count_text(worth, "rank"), " it yields at least ", share, " % of that.");
  if (worth < explanation.counts.back().ranks)
    text += concat(" With more ranks it yields less than ", share, " %: each image costs more.");
  return text;
}

void print_explanation(const ExplainedPlan& explained, std::ostream& out) {
  const planner::SearchResult& result = explained.searched.result;
  out << "at most " << human_bytes(explained.searched.question.memory) << " of a rank; "
      << search_text(result) << '\n';
  for (const std::string& note : explained.searched.notes) out << "kept: " << note << '\n';
  out << "    images/s      step      memory  plan, and why it is not chosen\n";
  print_plan("winner", result.best.front(), /*fits=*/true, out);
  for (const planner::Alternative& one : explained.explanation.alternatives) print_alternative(one, out);
  out << "\nif the machine were another one\n";
  for (const planner::Variation& one : explained.explanation.variations) print_variation(one, out);
  out << "\nranks worth renting, with " << result.best.front().batch
      << " images in a step and all blocks alike\n"
      << "   ranks    images/s   images/rank-h efficiency  plan\n";
  for (const planner::RankCount& one : explained.explanation.counts) print_count(one, out);
  out << renting_text(explained.explanation) << '\n';
}

void print_explanation_json(const ExplainedPlan& explained, std::ostream& out) {
  const planner::SearchResult& result = explained.searched.result;
  const planner::Explanation& explanation = explained.explanation;
  Json json = {{"memory_bytes", explained.searched.question.memory},
               {"gap", result.gap()},
               {"timed_out", result.timed_out},
               {"restrictions", result.restrictions},
               {"kept", explained.searched.notes},
               {"winner", json_of(result.best.front())},
               {"alternatives", Json::array()},
               {"variations", Json::array()},
               {"base_ranks", explanation.base_ranks},
               {"counts", Json::array()}};
  for (const auto& one : explanation.alternatives) json["alternatives"].push_back(json_of(one));
  for (const auto& one : explanation.variations) json["variations"].push_back(json_of(one));
  for (const auto& one : explanation.counts) json["counts"].push_back(json_of(one));
  out << json.dump(2) << '\n';
}

}  // namespace tessera::cli
