// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/stage_bounds.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/error.h"

namespace tessera::planner {

ChoiceWorks::ChoiceWorks(const ProfileTables& tables, const SearchQuestion& question, int64_t stages)
    : tables_(tables), question_(question), choices_(choices_of(tables, question, stages)) {
  const int64_t ranks = question.ranks / stages;
  const plan::Plan uniform = plan::uniform_plan(tables.profile.model, ranks, plan::Level::kReplicate,
                                                /*recompute=*/false, /*prefetch=*/1);
  for (size_t c = 0; c < choices_.all.size(); ++c) {
    plan::Plan plan = uniform;
    for (size_t i = 0; i < plan.units.size(); ++i) {
      std::string name = plan.units[i].name;
      plan.units[i] = choices_.allowed[i][c] ? choices_.all[c] : without_cut(choices_.all[c]);
      plan.units[i].name = std::move(name);
    }
    messages_.push_back(plan::stage_messages(tables.profile.model, plan, question.inputs).front());
    plans_.push_back(std::move(plan));
  }
}

const std::vector<std::vector<UnitWork>>& ChoiceWorks::of(int64_t images, bool accumulates) {
  const auto [found, is_new] = works_.try_emplace({images, accumulates});
  if (!is_new) return found->second;
  for (size_t c = 0; c < plans_.size(); ++c) {
    StepQuestion question{.plan = plans_[c], .inputs = question_.inputs, .batch = images};
    question.accumulation = accumulates ? 2 : 1;
    question.inputs.accumulates = accumulates;
    question.pieces = question_.pieces;
    question.ranks_of_host = question_.ranks_of_host;
    question.shared_memory = question_.shared_memory;
    found->second.push_back(unit_works(tables_, question, messages_[c]));
  }
  return found->second;
}

size_t ChoiceWorks::index_of(const plan::UnitPlan& choice) const {
  const auto found = std::ranges::find(choices_.all, choice);
  TESSERA_CHECK(found != choices_.all.end(), "no such choice");
  return static_cast<size_t>(found - choices_.all.begin());
}

double StageSum::all_passes(int64_t micro_batches) const {
  const auto others = static_cast<double>(micro_batches - 1);
  return passes[kFirstForward] + passes[kLastBackward] +
         others * (passes[kForward] + passes[kBackward] + accumulation);
}

void add_unit(StageSum* stage, const UnitWork& work, Place place, const StepForm& form) {
  const std::array<double, kPassKinds> passes = form.of(work.at(place));
  for (size_t pass = 0; pass < kPassKinds; ++pass) stage->passes[pass] += passes[pass];
  const std::array<double, kPassKinds> sent =
      place.is_first ? form.of(work.at({false, place.is_last})) : passes;
  stage->sent += sent[kBackward];
  stage->last_sent += sent[kLastBackward];
  stage->optimizer += work.optimizer;
  stage->first_accumulation += work.first_accumulation;
  stage->accumulation += work.accumulation;
  stage->memory.lasting += work.memory.lasting;
  stage->memory.kept += work.memory.kept;
}

namespace {

/// Over all places at which the model can be cut.
plan::PassBytes least_passed(const arch::ModelConfig& model, const plan::CostInputs& inputs) {
  const arch::Activations activations = arch::activations(model, static_cast<double>(inputs.compute_bytes));
  double least = activations.units.back().input;
  for (size_t i = 1; i < activations.units.size(); ++i) least = std::min(least, activations.units[i].input);
  return {least, inputs.frozen_units == 0 ? least : 0};
}

}  // namespace

FrameBounds frame_bounds(const ProfileTables& tables, const SearchQuestion& question, const Frame& frame) {
  FrameBounds bounds{.micro_batches = frame.micro_batches,
                     .is_gpipe = frame.schedule == plan::Schedule::kGpipe,
                     .is_interleaved = frame.virtual_stages > 1,
                     .forwards_first = {1},
                     .under_way = {1}};
  if (frame.stages == 1) return bounds;
  bounds.forwards_first.clear();
  bounds.under_way.clear();
  for (int64_t stage = 0; stage < frame.stages; ++stage) {
    int64_t now = 0, most = 0, first = 0;
    bool has_backward = false;
    for (const plan::Action& action : plan::schedule_of(frame.shape(), stage)) {
      const bool forward = action.direction == plan::Direction::kForward;
      now += forward ? 1 : -1;
      has_backward |= !forward;
      first += forward && !has_backward ? 1 : 0;
      most = std::max(most, now);
    }
    bounds.forwards_first.push_back(bounds.is_gpipe ? 1 : first);
    bounds.under_way.push_back(frame.virtual_stages > 1 ? 1 : most);  // of several parts: the least
  }
  plan::Plan plan =
      plan::uniform_plan(tables.profile.model, question.ranks, plan::Level::kReplicate, false, 1);
  plan::set_pipeline(
      &plan, tables.profile.model,
      {frame.stages, frame.schedule, frame.virtual_stages, frame.micro_batches, {}, frame.ahead});
  const int64_t host =
      question.ranks_of_host > 0 ? question.ranks_of_host : tables.profile.provenance.ranks_of_host;
  LinkTable links(tables.profile, plan, host, question.shared_memory);
  const plan::PassBytes bytes = least_passed(tables.profile.model, question.inputs);
  for (int64_t into = 1; into < frame.stages; ++into) {
    const auto images = static_cast<double>(frame.images);
    bounds.sends += links.between(into - 1, into).seconds(bytes.forward * images) +
                    links.between(into, into - 1).seconds(bytes.backward * images);
  }
  return bounds;
}

/// Note [Pipelines]: the first micro-batch goes forward through all stages and back, which takes the sum of
/// their passes, w = f + b', where b' ends when the gradient is sent. Stage s can begin its first backward
/// pass when that micro-batch has been at the stages behind it; it has done at most n forward passes by then
/// (n: forwards_first), and does the others, m - n, and all m backward passes after it; after its last one
/// the stages before it have one more each. Together a step takes at least
///   (sum of w over all stages) + (m - 1) b + (m - n) f of stage s.
/// With GPipe every forward pass comes before the last stage's first backward pass: the last stage ends its
/// forward passes (m - 1) f behind the first micro-batch, and the first stage its backward passes (m - 1) b
/// behind that, with f and b of any stages. So there n counts as 1.
double beyond_one_pass(const StageSum& stage, const FrameBounds& frame, size_t index) {
  const auto m = static_cast<double>(frame.micro_batches);
  const auto n = static_cast<double>(frame.forwards_first[index]);
  const double first = stage.passes[kFirstForward] - stage.passes[kForward],
               last = stage.last_sent - stage.sent;
  return first + last + stage.first_accumulation + (m - 1) * (stage.passes[kBackward] + stage.accumulation) +
         (m - n) * stage.passes[kForward];
}

double step_bound(std::span<const StageSum> stages, const FrameBounds& frame) {
  const int64_t m = frame.micro_batches;
  if (stages.size() == 1) return stages[0].optimizer + stages[0].all_passes(m);
  if (frame.is_interleaved) {  // virtual stages: those before its first part delay a rank's first and last
                               // pass
    const size_t ranks = frame.forwards_first.size();
    double before = stages[0].optimizer, most = 0;
    for (size_t s = 0; s < ranks; ++s) {
      double own = 0;
      for (size_t part = s; part < stages.size(); part += ranks) own += stages[part].all_passes(m);
      own -= stages[s].passes[kLastBackward] - stages[s].last_sent;
      most = std::max(most, before + own);
      before += stages[s].way();
    }
    return most;
  }
  double sum = stages[0].optimizer + frame.sends, most = 0, forward = 0, backward = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    sum += stages[s].way();
    most = std::max(most, beyond_one_pass(stages[s], frame, s));
    forward = std::max(forward, stages[s].passes[kForward]);
    backward = std::max(backward, stages[s].passes[kBackward]);
  }
  if (frame.is_gpipe) most = std::max(most, static_cast<double>(m - 1) * (forward + backward));
  return sum + most;
}

}  // namespace tessera::planner
