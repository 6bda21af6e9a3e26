// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/stage_bounds.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/planner/busy_ranks.h"

namespace tessera::planner {

ChoiceWorks::ChoiceWorks(const ProfileTables& tables, const AlikeUnits& alike, const SearchQuestion& question,
                         int64_t stages)
    : alike_(alike), question_(question), choices_(choices_of(tables, question, stages)) {
  const int64_t of_host = ranks_of_host(tables.profile, question.ranks_of_host);
  least_.share = BusyRanks(tables.profile, {stages, question.ranks / stages, of_host}).least_share();
  // Only where all messages are in the background, or none: else waiting for the slowest may hide some.
  if (stages == 1 && question.ranks > 1 && question.ranks <= of_host)
    least_.lag = std::min(tables.profile.unit_lag, tables.profile.micro_batch_lag);
  const arch::ModelConfig& small = alike.tables().profile.model;
  const plan::Plan uniform =
      plan::uniform_plan(small, question.ranks / stages, plan::Level::kReplicate, /*recompute=*/false,
                         /*prefetch=*/1);
  for (size_t c = 0; c < choices_.all.size(); ++c) {
    const auto whole = std::ranges::find(choices_.all, without_cut(choices_.all[c]));
    TESSERA_CHECK(whole != choices_.all.end(), "no such choice");
    const auto index = static_cast<size_t>(whole - choices_.all.begin());
    std::vector<size_t>& by_key = whole_.emplace_back();
    plan::Plan plan = uniform;
    for (size_t key = 0; key < alike.first().size(); ++key) {
      by_key.push_back(choices_.allowed[alike.first()[key]][c] ? c : index);
      plan::UnitPlan& unit = plan.units[alike.small()[key]];
      std::string name = unit.name;
      unit = choices_.all[by_key.back()];
      unit.name = std::move(name);
    }
    messages_.push_back(plan::stage_messages(small, plan, alike.inputs()).front());
    plans_.push_back(std::move(plan));
  }
}

const std::vector<std::vector<UnitWork>>& ChoiceWorks::of(int64_t images, bool accumulates) {
  const auto [found, is_new] = works_.try_emplace({images, accumulates});
  if (!is_new) return found->second;
  for (size_t c = 0; c < plans_.size(); ++c) {
    StepQuestion question{.plan = plans_[c], .inputs = alike_.inputs(), .batch = images};
    question.accumulation = accumulates ? 2 : 1;
    question.inputs.accumulates = accumulates;
    question.pieces = question_.pieces;
    question.ranks_of_host = question_.ranks_of_host;
    question.shared_memory = question_.shared_memory;
    const std::vector<UnitWork> units = unit_works(alike_.tables(), question, messages_[c], least_);
    std::vector<UnitWork>& by_key = found->second.emplace_back();
    for (const size_t unit : alike_.small()) by_key.push_back(units[unit]);
  }
  std::map<std::pair<int64_t, bool>, std::vector<UnitWork*>> by_layout;
  for (size_t c = 0; c < plans_.size(); ++c) {
    const plan::Layout& layout = choices_.all[c].layout;
    for (size_t key = 0; key < alike_.first().size(); ++key) {
      if (alike_.is_end(key) || !choices_.allowed[alike_.first()[key]][c]) continue;
      by_layout[{layout.tensor, layout.adjacent}].push_back(&found->second[c][key]);
    }
  }
  for (const auto& [layout, blocks] : by_layout)
    set_neighbours(alike_.tables().profile, least_.share, blocks);
  return found->second;
}

double Waiting::bytes(const plan::UnitMemory& memory) const {
  return memory.lasting + static_cast<double>(micro_batches) * memory.kept +
         (has_gradients ? memory.gradients : 0);
}

double StageSum::bytes(const Waiting& waiting) const {
  double most = waiting.bytes(memory);
  if (!waiting.has_gradients) {  // else no more than at that time
    const Waiting behind_first_backward{waiting.micro_batches - 1, true};
    most = std::max(most, behind_first_backward.bytes(memory));
  }
  return plan::kProgramGrowth + most + memory.passing;
}

double StageSum::all_passes(int64_t micro_batches) const {
  const auto others = static_cast<double>(micro_batches - 1);
  // The first micro-batch adds nothing.
  return passes[kFirstForward] + passes[kLastBackward] + others * (passes[kForward] + passes[kBackward]) -
         accumulation;
}

namespace {

/// What a unit does of a backward pass until the gradient is sent to the stage before. By then the sum of the
/// first unit's gradients has only begun, and copies and sums over replicas may be under way.
PassWork until_sent(const UnitWork& work, UnitPosition place, Pass pass) {
  const bool is_first = place.is_first;
  place.is_first = false;
  PassWork sent = work.at(place)[pass];
  sent.copies = sent.replicas = 0;
  sent.occupied -= sent.late;
  if (pass == kBackward) sent.compute -= work.accumulation;  // the first micro-batch adds nothing
  if (is_first) sent.sums = sent.rows = 0;
  return sent;
}

}  // namespace

void add_unit(StageSum* stage, const UnitWork& work, UnitPosition place, const StepForm& form) {
  const std::array<double, kPassKinds> passes = form.of(work.at(place));
  for (size_t pass = 0; pass < kPassKinds; ++pass) stage->passes[pass] += passes[pass];
  stage->sent += form.passes[kBackward].of(until_sent(work, place, kBackward));
  stage->last_sent += form.passes[kLastBackward].of(until_sent(work, place, kLastBackward));
  stage->optimizer += work.optimizer;
  stage->accumulation += work.accumulation;
  stage->memory.lasting += work.memory.lasting;
  stage->memory.gradients += work.memory.gradients;
  stage->memory.kept += work.memory.kept;
  stage->memory.passing = std::max(stage->memory.passing, work.memory.passing);
}

namespace {

void add_times(PassWork* sum, const PassWork& work, double count, bool on_channel) {
  sum->compute += count * work.compute;
  sum->occupied += count * work.occupied;
  (on_channel ? sum->exposed : sum->occupied) += count * work.exposed;
  if (!on_channel) return;
  sum->gathers += count * work.gathers;
  sum->sums += count * work.sums;
  sum->copies += count * work.copies;
  sum->replicas += count * work.replicas;
  sum->rows += count * work.rows;
  sum->beside += count * work.beside;
  sum->stalled += count * work.stalled;
}

double greatest_of(const std::vector<BoundForm>& forms, const PassWork& work) {
  double most = 0;
  for (const BoundForm& form : forms) most = std::max(most, form.of(work));
  return most;
}

const std::vector<BoundForm>& forms_of(const BoundForms& forms, size_t pass) {
  return pass == kFirstForward || pass == kForward ? forms.forward : forms.backward;
}

}  // namespace

void StageWork::add(const UnitWork& work, UnitPosition place, double count, bool on_channel) {
  const auto& of = work.at(place);
  for (size_t pass = 0; pass < kPassKinds; ++pass) add_times(&passes[pass], of[pass], count, on_channel);
  add_times(&sent, until_sent(work, place, kBackward), count, on_channel);
  add_times(&last_sent, until_sent(work, place, kLastBackward), count, on_channel);
  optimizer += count * work.optimizer;
  accumulation += count * work.accumulation;
  memory.lasting += count * work.memory.lasting;
  memory.gradients += count * work.memory.gradients;
  memory.kept += count * work.memory.kept;
  memory.passing = std::max(memory.passing, work.memory.passing);
}

StageWork& StageWork::operator+=(const StageWork& other) {
  for (size_t pass = 0; pass < kPassKinds; ++pass)
    add_times(&passes[pass], other.passes[pass], 1, /*on_channel=*/true);
  add_times(&sent, other.sent, 1, /*on_channel=*/true);
  add_times(&last_sent, other.last_sent, 1, /*on_channel=*/true);
  optimizer += other.optimizer;
  accumulation += other.accumulation;
  memory.lasting += other.memory.lasting;
  memory.gradients += other.memory.gradients;
  memory.kept += other.memory.kept;
  memory.passing = std::max(memory.passing, other.memory.passing);
  return *this;
}

StageSum StageWork::sum(const BoundForms& forms) const {
  StageSum sum{.optimizer = optimizer, .accumulation = accumulation, .memory = memory};
  for (size_t pass = 0; pass < kPassKinds; ++pass)
    sum.passes[pass] = greatest_of(forms_of(forms, pass), passes[pass]);
  sum.sent = greatest_of(forms.backward, sent);
  sum.last_sent = greatest_of(forms.backward, last_sent);
  return sum;
}

StepForm StageWork::greatest(const BoundForms& forms) const {
  StepForm greatest;
  for (size_t pass = 0; pass < kPassKinds; ++pass) {
    greatest.passes[pass] = std::ranges::max(forms_of(forms, pass), {},
                                             [&](const BoundForm& form) { return form.of(passes[pass]); });
  }
  return greatest;
}

void StageUnits::add(StageWork* stage, size_t from, size_t to, size_t choice) const {
  for (size_t i = from; i < to;) {
    const UnitPosition place = unit_position(i, begin, end, keys.size());
    size_t behind = i + 1;
    if (place == UnitPosition{})
      while (behind < to && keys[behind] == keys[i] &&
             unit_position(behind, begin, end, keys.size()) == place)
        ++behind;
    const UnitWork& work = works[choice][keys[i]];
    stage->add(work, place, static_cast<double>(behind - i), work.channel == channel);
    i = behind;
  }
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
                     .waiting = {{Waiting{}}}};
  if (frame.stages == 1) return bounds;
  bounds.forwards_first.clear();
  bounds.waiting.clear();
  for (int64_t stage = 0; stage < frame.stages; ++stage) {
    int64_t all = 0, most = 0, first = 0;
    std::vector<Waiting> now(static_cast<size_t>(frame.virtual_stages), {0, false}), at_most = now;
    bool has_backward = false;
    for (const plan::Action& action : plan::schedule_of(frame.shape(), stage)) {
      const bool forward = action.direction == plan::Direction::kForward;
      Waiting& part = now[static_cast<size_t>(action.part)];
      part.micro_batches += forward ? 1 : -1;
      part.has_gradients |= !forward;
      all += forward ? 1 : -1;
      has_backward |= !forward;
      first += forward && !has_backward ? 1 : 0;
      if (!forward || all < most) continue;
      most = all;
      at_most = now;
    }
    bounds.forwards_first.push_back(bounds.is_gpipe ? 1 : first);
    bounds.waiting.push_back(at_most);
  }
  plan::Plan plan =
      plan::uniform_plan(tables.profile.model, question.ranks, plan::Level::kReplicate, false, 1);
  plan::set_pipeline(
      &plan, tables.profile.model,
      {frame.stages, frame.schedule, frame.virtual_stages, frame.micro_batches, {}, frame.ahead});
  const int64_t host = ranks_of_host(tables.profile, question.ranks_of_host);
  LinkTable links(tables.profile, plan, host, question.shared_memory);
  const plan::PassBytes bytes = least_passed(tables.profile.model, question.inputs);
  for (int64_t into = 1; into < frame.stages; ++into) {
    const auto images = static_cast<double>(frame.images);
    bounds.sends += links.between(into - 1, into).seconds(bytes.forward * images) +
                    links.between(into, into - 1).seconds(bytes.backward * images);
  }
  return bounds;
}

namespace {

/// Seconds of the last backward pass, until the stage before goes on or, on the first stage, the step ends.
double last_backward(const StageSum& stage, size_t index) {
  return index == 0 ? stage.passes[kLastBackward] : stage.last_sent;
}

}  // namespace

/// Note [Pipelines]: the first micro-batch goes forward through all stages and back, which takes the sum of
/// their passes, w = f + b', where b' ends when the gradient is sent. Stage s can begin its first backward
/// pass when that micro-batch has been at the stages behind it; it has done at most n forward passes by then
/// (n: forwards_first), and does the others, m - n, and all m backward passes after it; after its last one
/// the stages before it have one more each. Together a step takes at least
///   (sum of w over all stages) + (m - 1) b + (m - n) f of stage s.
/// The way of a stage before s is that of the first micro-batch forward and of the last one back, of a stage
/// behind s that of the first one. The step ends with the first stage's last backward pass and its sums.
/// With GPipe every forward pass comes before the last stage's first backward pass: the last stage ends its
/// forward passes (m - 1) f behind the first micro-batch, and the first stage its backward passes (m - 1) b
/// behind that, with f and b of any stages. So there n counts as 1.
double delay_of(const StageSum& stage, size_t index) {
  return stage.passes[kFirstForward] - stage.passes[kForward] + last_backward(stage, index) - stage.sent;
}

double beyond_one_pass(const StageSum& stage, const FrameBounds& frame, size_t index) {
  const auto m = static_cast<double>(frame.micro_batches);
  const auto n = static_cast<double>(frame.forwards_first[index]);
  return delay_of(stage, index) + (m - 1) * stage.passes[kBackward] - stage.accumulation +
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
      own -= stages[s].passes[kLastBackward] - last_backward(stages[s], s);
      most = std::max(most, before + own);
      before += stages[s].passes[kFirstForward] + last_backward(stages[s], s);
    }
    return most;
  }
  // Of the stages before the one in question the last backward pass, of those behind it the first.
  double before = 0, behind = 0, least = 0, most = 0, forward = 0, backward = 0;
  const auto first_way = [m, &frame](const StageSum& stage) {  // with GPipe the last micro-batch's, forward
    return stage.passes[frame.is_gpipe ? kForward : kFirstForward] + (m > 1 ? stage.sent : stage.last_sent);
  };
  for (const StageSum& stage : stages) behind += first_way(stage);
  least = behind;
  for (size_t s = 0; s < stages.size(); ++s) {
    behind -= first_way(stages[s]);
    most = std::max(most, before + stages[s].way() + beyond_one_pass(stages[s], frame, s) + behind);
    before += stages[s].passes[kFirstForward] + last_backward(stages[s], s);
    forward = std::max(forward, stages[s].passes[kForward]);
    backward = std::max(backward, stages[s].passes[kBackward]);
  }
  if (frame.is_gpipe) most = std::max(most, least + static_cast<double>(m - 1) * (forward + backward));
  return stages[0].optimizer + frame.sends + most;
}

}  // namespace tessera::planner
