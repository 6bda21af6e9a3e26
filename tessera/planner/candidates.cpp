// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/candidates.h"

#include <algorithm>
#include <limits>

namespace tessera::planner {
namespace {

double most_of(const std::vector<plan::Memory>& stages) {
  double most = 0;
  for (const plan::Memory& stage : stages) most = std::max(most, stage.total());
  return most;
}

/// Is `one` better than `other`: faster, or as fast with less memory?
bool is_better(const FoundPlan& one, const FoundPlan& other) {
  constexpr double kSame = 1e-9;
  const double difference = one.seconds_per_image() / other.seconds_per_image() - 1;
  return std::abs(difference) > kSame ? difference < 0 : one.most_memory() < other.most_memory();
}

/// But for the prefetch.
bool is_alike(const StepQuestion& one, const StepQuestion& other) {
  plan::Plan plan = one.plan;
  plan.prefetch = other.plan.prefetch;
  return plan == other.plan && one.accumulation == other.accumulation && one.batch == other.batch;
}

}  // namespace

double FoundPlan::most_memory() const { return most_of(memory); }

bool has_same_blocks(const FoundPlan& one, const FoundPlan& other) {
  StepQuestion first = one.question;
  const StepQuestion& second = other.question;
  if (first.plan.units.size() != second.plan.units.size()) return false;
  first.plan.units.front() = second.plan.units.front();
  first.plan.units.back() = second.plan.units.back();
  return one.batch == other.batch && is_alike(first, second);
}

double SearchResult::gap() const {
  return best.empty() ? 0 : std::max(1 - lower_bound / best.front().seconds_per_image(), 0.0);
}

Candidates::Candidates(const ProfileTables& tables, const SearchQuestion& question)
    : tables_(tables), question_(question), names_(arch::unit_names(tables.profile.model)) {}

StepQuestion Candidates::question_of(const ProposedPlan& candidate) const {
  const Frame& frame = candidate.frame;
  StepQuestion question;
  question.inputs = question_.inputs;
  question.batch = frame.images;
  question.accumulation = frame.micro_batches;
  question.inputs.accumulates = frame.micro_batches > 1;
  question.pieces = question_.pieces;
  question.ranks_of_host = question_.ranks_of_host;
  question.shared_memory = question_.shared_memory;
  plan::Plan& plan = question.plan;
  plan.world = question_.ranks;
  plan.prefetch = candidate.prefetch;
  plan.stages = frame.stages;
  plan.virtual_stages = frame.virtual_stages;
  plan.micro_batches = frame.micro_batches;
  plan.schedule = frame.schedule;
  plan.ahead = frame.ahead;
  plan.first_unit.assign(candidate.first_unit.begin(), candidate.first_unit.end());
  for (size_t i = 0; i < names_.size(); ++i) {
    plan.units.push_back(*candidate.units[i]);
    plan.units.back().name = names_[i];
  }
  return question;
}

Candidates::Outcome Candidates::try_plan(const ProposedPlan& candidate) {
  FoundPlan found;
  found.question = question_of(candidate);
  found.batch = candidate.frame.batch;
  found.memory = plan::predict_stage_memory(tables_.profile.model, found.question.plan, found.question.inputs,
                                            found.question.batch);
  Outcome outcome{.memory = found.memory, .fits = found.most_memory() <= question_.memory};
  if (!outcome.fits) {
    if (result_.smallest && result_.smallest->most_memory() <= found.most_memory()) return outcome;
    found.time = predict_step(tables_, found.question);
    result_.smallest = std::move(found);
    return outcome;
  }
  found.time = predict_step(tables_, found.question);
  ++result_.simulated;
  outcome.seconds_per_image = found.seconds_per_image();
  keep(std::move(found));
  return outcome;
}

void Candidates::keep(FoundPlan plan) {
  std::vector<FoundPlan>& best = result_.best;
  const auto alike = std::ranges::find_if(
      best, [&](const FoundPlan& other) { return is_alike(plan.question, other.question); });
  if (alike != best.end()) {
    if (!is_better(plan, *alike)) return;
    best.erase(alike);
  }
  best.insert(std::ranges::upper_bound(best, plan, is_better), std::move(plan));
  if (best.size() > kPlansKept) best.pop_back();
}

double Candidates::best() const {
  return result_.best.empty() ? std::numeric_limits<double>::infinity()
                              : result_.best.front().seconds_per_image();
}

bool Candidates::is_time_up(double share) const { return seconds_since(start_) > share * question_.seconds; }

SearchResult Candidates::take() {
  result_.seconds = seconds_since(start_);
  return std::move(result_);
}

}  // namespace tessera::planner
