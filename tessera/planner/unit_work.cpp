// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/unit_work.h"

#include <algorithm>

#include "tessera/planner/lookup.h"
#include "tessera/planner/search_space.h"
#include "tessera/planner/unit_cost.h"

namespace tessera::planner {
namespace {

using plan::Level;

struct Message {
  double seconds = 0;
  bool own_time = false;  // the rank copies by itself
};

/// Seconds of computation beside which messages of a pass go on next to the stem and the head.
struct Ends {
  double stem_forward = 0, stem_backward = 0, head_backward = 0;
};

/// Writes the passes of one unit at one place.
class PassWriter {
 public:
  PassWriter(std::array<PassWork, kPassKinds>* passes, UnitPosition place, const Ends& ends)
      : passes_(*passes), place_(place), ends_(ends) {}

  void add_gathers(Level level, bool is_trained, const Message& gather, bool is_main) {
    if (level == Level::kReplicate) return;
    const double before = place_.is_first ? 0 : place_.is_after_stem ? ends_.stem_forward : kInfinite;
    add(kFirstForward, &PassWork::gathers, gather, is_main, before);
    if (level != Level::kZero3 || (place_.is_last && place_.is_first)) return;
    // The last unit of a part stays gathered until its backward pass has ended, and that may be the next but
    // one: only its first gather is certain.
    if (place_.is_last) return;
    add(kForward, &PassWork::gathers, gather, is_main, before);
    if (!is_trained) return;
    const double behind = place_.is_before_head ? ends_.head_backward : kInfinite;
    add(kBackward, &PassWork::gathers, gather, is_main, behind);
    add(kLastBackward, &PassWork::gathers, gather, is_main, behind);
  }

  /// `waits`: the sum of the unit's other parameters begins when this one has ended.
  /// (More than 5 parameters: the messages of one unit and how they travel.)
  void add_sums(Level level, const Message& reduce, const Message& replicas, bool is_sharded, bool is_main,
                bool waits) {
    const double beside = place_.is_first || waits ? 0
                          : place_.is_after_stem   ? ends_.stem_backward
                                                   : kInfinite;
    if (is_sharded) {
      if (level >= Level::kZero2) add(kBackward, &PassWork::sums, reduce, is_main, beside);
      add(kLastBackward, &PassWork::sums, reduce, is_main, beside);
      add_replicas(replicas, is_main);
      return;
    }
    add(kLastBackward, &PassWork::sums, replicas, is_main, beside);
    add(kLastBackward, &PassWork::copies, replicas, is_main, place_.is_first ? 0 : kInfinite);
  }

  /// Of the parameters of a cut unit that are not cut: the sum begins when that of the others has ended, and
  /// ends before the next one of those begins.
  void add_rows(const Message& sum) {
    if (sum.own_time || place_.is_after_stem) return;
    (place_.is_first ? passes_[kLastBackward].occupied : passes_[kLastBackward].rows) += sum.seconds;
  }

 private:
  /// `is_main`: on the unit's channel; messages of others are counted where the rank makes them by itself.
  /// `beside`: seconds of computation that may go on beside the message.
  void add(Pass pass, double PassWork::*part, const Message& message, bool is_main, double beside) {
    if (message.own_time) passes_[pass].occupied += message.seconds;
    if (message.own_time && part == &PassWork::copies) passes_[pass].late += message.seconds;
    if (message.own_time || !is_main) return;
    const double hidden = std::min(beside, message.seconds);
    passes_[pass].*part += hidden;
    passes_[pass].exposed += message.seconds - hidden;
  }

  /// Both messages; on the second channel.
  void add_replicas(const Message& one, bool is_main) {
    if (one.own_time || (is_main && place_.is_first)) {
      passes_[kLastBackward].occupied += 2 * one.seconds;
      passes_[kLastBackward].late += 2 * one.seconds;
    } else if (is_main) {
      passes_[kLastBackward].replicas += 2 * one.seconds;
    }
  }

  std::array<PassWork, kPassKinds>& passes_;
  UnitPosition place_;
  const Ends& ends_;
};

/// Writes the works of a stage's units: first what they compute, then their messages.
class WorkWriter {
 public:
  WorkWriter(const ProfileTables& tables, const StepQuestion& question, const LeastTimes& least)
      : tables_(tables),
        question_(question),
        least_(least),
        links_(tables.profile, question.plan, ranks_of_host(tables.profile, question.ranks_of_host),
               question.shared_memory),
        works_(question.plan.units.size()),
        entries_(works_.size(), 0) {}

  std::vector<UnitWork> write(const std::vector<plan::UnitMessages>& messages) {
    for (const plan::UnitMessages& one : messages) count(one);
    const std::vector<plan::UnitMemory> memory =
        plan::unit_memory(profile().model, question_.plan, question_.inputs, question_.batch, /*rank=*/0);
    for (size_t i = 0; i < works_.size(); ++i) {
      works_[i].memory = memory[i];
      add_computation(i);
    }
    for (const plan::UnitMessages& one : messages) add_messages(one);
    return std::move(works_);
  }

 private:
  const Profile& profile() const { return tables_.profile; }
  double slower() const { return profile().compute_slowdown / profile().link_slowdown; }

  void count(const plan::UnitMessages& one) {
    ++entries_[one.index];
    // Of a value of the stem or the head, whatever their level.
    const double most_adding =
        std::max({profile().widen_seconds, profile().accumulate_seconds, profile().add_sum_seconds});
    const double adding = one.trained ? one.values * most_adding * slower() : 0;
    if (one.index == 0) ends_.stem_backward += adding;
    if (one.index + 1 == works_.size()) ends_.head_backward += adding;
  }

  void add_computation(size_t i) {
    const UnitCost cost = unit_cost(tables_, question_, links_, 0, i);
    const bool is_trained = static_cast<int64_t>(i) >= question_.inputs.frozen_units;
    const double lag = cost.exchanges ? 0 : least_.lag;
    for (auto& passes : works_[i].passes) {
      for (const Pass pass : {kFirstForward, kForward})
        passes[pass] = {.compute = least_.share * cost.forward,
                        .occupied = cost.exchange_forward + lag * cost.forward};
      if (!is_trained) continue;
      for (const Pass pass : {kBackward, kLastBackward})
        passes[pass] = {.compute = least_.share * cost.backward,
                        .occupied = cost.exchange_backward + lag * cost.backward};
    }
    if (i == 0) ends_.stem_forward = cost.forward * slower();
    if (i == 0 && is_trained) ends_.stem_backward += cost.backward * slower();
    if (i + 1 == works_.size() && is_trained) ends_.head_backward += cost.backward * slower();
  }

  Message message(const char* operation, const plan::Span& span, double bytes) {
    if (bytes == 0) return {};
    const LinkCost link = links_.of_group(operation, span, 0);
    return {link.seconds(bytes), link.own_time};
  }

  void add_messages(const plan::UnitMessages& one) {
    UnitWork& work = works_[one.index];
    const bool is_main = one.name == question_.plan.units[one.index].name;
    const bool is_sharded = one.shard.size > 1;
    if (is_main) work.channel = is_sharded ? one.shard : one.replicate;
    const Message gather = message("all_gather", one.shard, one.gather),
                  reduce = message("reduce_scatter", one.shard, one.reduce),
                  scatter = message("reduce_scatter", one.replicate, one.replicas),
                  collect = message("all_gather", one.replicate, one.replicas);
    // One after the other: the shorter stands for both.
    const Message replicas = {std::min(scatter.seconds, collect.seconds),
                              scatter.own_time && collect.own_time};
    for (const Message& each : {gather, reduce, scatter, collect}) work.copies_itself |= each.own_time;
    const bool waits = entries_[one.index] > 1;
    for (size_t i = 0; i < work.passes.size(); ++i) {
      const UnitPosition at = {(i & 1) != 0, (i & 2) != 0, (i & 4) != 0, (i & 8) != 0};
      PassWriter writer(&work.passes[i], at, ends_);
      writer.add_gathers(one.level, one.trained, gather, is_main);
      if (!one.trained) continue;
      writer.add_sums(one.level, reduce, replicas, is_sharded, is_main, waits);
      if (!is_main) writer.add_rows(is_sharded ? reduce : scatter);
    }
    if (one.trained) add_gradients(one, &work);
  }

  /// Their collection and the update.
  void add_gradients(const plan::UnitMessages& one, UnitWork* work) const {
    work->optimizer += least_.share * one.owned * profile().optimizer_seconds;
    // The last backward pass is the first as well where a step has one micro-batch.
    const double first = accumulation_seconds(profile(), one, true, question_.accumulation);
    const double other = accumulation_seconds(profile(), one, false, question_.accumulation);
    const double adding = least_.share * (question_.inputs.accumulates ? other : first);
    work->accumulation += std::max(adding - least_.share * first, 0.0);
    for (auto& passes : work->passes)
      for (const Pass pass : {kBackward, kLastBackward}) passes[pass].compute += adding;
  }

  const ProfileTables& tables_;
  const StepQuestion& question_;
  const LeastTimes least_;
  LinkTable links_;
  std::vector<UnitWork> works_;
  std::vector<size_t> entries_;  // of `messages`, by unit
  Ends ends_;
};

}  // namespace

std::vector<UnitWork> unit_works(const ProfileTables& tables, const StepQuestion& question,
                                 const std::vector<plan::UnitMessages>& messages, const LeastTimes& least) {
  return WorkWriter(tables, question, least).write(messages);
}

double BoundForm::of(const PassWork& work) const {
  const double messages = gathers * work.gathers + sums * work.sums + copies * work.copies +
                          replicas * work.replicas + rows * work.rows + beside * work.beside +
                          stalled * work.stalled;
  const double own = compute * work.compute + occupied * work.occupied + exposed * work.exposed;
  return window > 0 ? std::min(own, window) + std::max(messages - window, 0.0) : own + messages;
}

/// Note [Forms]: let a pass compute for C seconds, be occupied for E, and have messages of M seconds on one
/// channel, all as if alone. While computation and messages go on together for a time t, t / c of the
/// computation pass and t / l of the messages (c, l: the slowdowns). If they are together for t and a message
/// also passes while the rank is occupied, the pass takes at least E + C + (M - E) - t (1/c + 1/l - 1), where
/// t is at most C c and at most M l. Where 1/c + 1/l >= 1 this gives, for the two limits,
///   E + C + k (M - E) with k = l (1 - 1/c)    and    M + C c (1 - 1/l);
/// else overlap costs time, and both are at least C + M. E + C is a bound by itself.
///
/// With a prefetch of at most 1, a pass waits for the gathers of a unit before it begins those of the next,
/// and one sum over a shard group is under way at a time, or the first part of a sum over replicas, whose
/// second part the next sum may have beside it. So on whatever channels M may be all gathers, or all sums; on
/// one channel all messages together, with any prefetch, those besides that computation cannot hide, X, for
/// which E + C + X + k (M - E) and M + X + C c (1 - 1/l) hold; and so all of the second channel of units that
/// are sharded and replicated.
///
/// And with such a prefetch only the pass of one unit is beside the gather of the next, or beside the sum of
/// the one before it: the two take at least max(own, message) >= min(own, w) + max(message - w, 0) for any w.
namespace {

/// E + C + k (M - E) and M + C c (1 - 1/l), where M is as `messages` says; with its `exposed`, what of the
/// messages nothing hides is one of them.
void add_overlap(const Profile& profile, const BoundForm& messages, std::vector<BoundForm>* forms) {
  const double c = profile.compute_slowdown, l = profile.link_slowdown;
  const double k = std::min(l * (1 - 1 / c), 1.0), beside_messages = std::min(c * (1 - 1 / l), 1.0);
  if (k > 0) {
    forms->push_back({.compute = 1,
                      .occupied = 1 - k,
                      .exposed = messages.exposed > 0 ? 1 : 1 - k,
                      .gathers = k * messages.gathers,
                      .sums = k * messages.sums,
                      .copies = k * messages.copies,
                      .replicas = k * messages.replicas});
  }
  BoundForm waiting = messages;
  waiting.compute = beside_messages;
  forms->push_back(waiting);
}

constexpr BoundForm kAlone, kGathers = {.compute = 0, .occupied = 0, .exposed = 0, .gathers = 1},
                            kSums = {.compute = 0, .occupied = 0, .exposed = 0, .sums = 1},
                            kMessages = {.compute = 0, .occupied = 0, .gathers = 1, .sums = 1, .copies = 1},
                            kReplicas = {.compute = 0, .occupied = 0, .exposed = 0, .replicas = 1};

}  // namespace

BoundForms forms_of_one_channel(const Profile& profile) {
  BoundForms forms = {{kAlone}, {kAlone}};
  add_overlap(profile, kMessages, &forms.forward);
  add_overlap(profile, kMessages, &forms.backward);
  add_overlap(profile, kReplicas, &forms.backward);
  return forms;
}

/// Note [Units of one layout]: with a prefetch of 1 the gather of a unit begins when the unit before it
/// begins to compute, and that one's exchanges E come behind its computation C. So a gather of G seconds is
/// beside computation for at least min(G, C c / l), which costs k times as much, and the rank waits for the
/// rest that E does not cover: G - C c / l - E. Without prefetch it waits for all. Where units are equal a
/// larger prefetch changes nothing: the channel, or the rank, is busy throughout.
///
/// The sum of those parameters of a cut unit that are not cut begins when the sum of the others has ended.
/// Then the unit before it computes, as soon as it is gathered.
void set_neighbours(const Profile& profile, double share, const std::vector<UnitWork*>& blocks) {
  const double slower = profile.compute_slowdown / profile.link_slowdown;
  double forward = kInfinite, backward = kInfinite, most = 0;
  for (const UnitWork* block : blocks) {
    const auto& passes = block->at({});
    forward = std::min(forward, passes[kForward].compute * slower);
    backward = std::min(backward, passes[kLastBackward].compute * slower);
    // At most: as long as while all ranks compute.
    most = std::max(most, passes[kForward].compute / share * slower + passes[kForward].occupied);
  }
  for (UnitWork* block : blocks) {
    if (block->copies_itself) continue;
    for (size_t i = 0; i < block->passes.size(); ++i) {
      auto& passes = block->passes[i];
      // Of its gather, `gathers` is only what the stem hides: the rest is in `exposed`.
      const bool is_after_stem = (i & UnitPosition{.is_after_stem = true}.index()) != 0;
      passes[kLastBackward].rows = std::min(passes[kLastBackward].rows, backward);
      for (const Pass pass : {kFirstForward, kForward}) {
        passes[pass].beside = std::min(passes[pass].gathers, forward);
        passes[pass].stalled = is_after_stem ? 0 : std::max(passes[pass].gathers - most, 0.0);
      }
    }
  }
}

BoundForms forms_of_one_layout(const Profile& profile) {
  BoundForms forms = forms_of_one_channel(profile);
  const double c = profile.compute_slowdown, l = profile.link_slowdown, k = std::min(l * (1 - 1 / c), 1.0);
  forms.forward.push_back({.beside = k, .stalled = 1});
  forms.backward.push_back({.rows = k});
  return forms;
}

BoundForms forms_of_channels(const Profile& profile, const PassWindows& windows) {
  BoundForms forms = {{kAlone}, {kAlone}};
  forms.forward.push_back({.gathers = 1, .window = windows.forward});
  add_overlap(profile, kGathers, &forms.forward);
  forms.backward.push_back({.gathers = 1, .window = windows.backward});
  forms.backward.push_back({.sums = 1, .window = windows.backward});
  add_overlap(profile, kGathers, &forms.backward);
  add_overlap(profile, kSums, &forms.backward);
  return forms;
}

std::array<double, kPassKinds> StepForm::of(const std::array<PassWork, kPassKinds>& works) const {
  std::array<double, kPassKinds> seconds = {};
  for (size_t pass = 0; pass < kPassKinds; ++pass) seconds[pass] = passes[pass].of(works[pass]);
  return seconds;
}

StepForm StepForm::without_messages() const {
  StepForm form = *this;
  for (BoundForm& pass : form.passes) {
    pass.exposed = pass.occupied;
    pass.gathers = pass.sums = pass.copies = pass.replicas = pass.rows = pass.beside = pass.stalled = 0;
  }
  return form;
}

StepForm StepForm::mixed(const StepForm& other, double share) const {
  StepForm form = *this;
  for (size_t pass = 0; pass < kPassKinds; ++pass) {
    for (double BoundForm::*factor :
         {&BoundForm::compute, &BoundForm::occupied, &BoundForm::exposed, &BoundForm::rows,
          &BoundForm::beside, &BoundForm::stalled, &BoundForm::gathers, &BoundForm::sums, &BoundForm::copies,
          &BoundForm::replicas}) {
      double& value = form.passes[pass].*factor;
      value += share * (other.passes[pass].*factor - value);
    }
  }
  return form;
}

std::vector<StepForm> step_forms(const BoundForms& forms) {
  std::vector<StepForm> pairs;
  for (const BoundForm& forward : forms.forward) {
    for (const BoundForm& backward : forms.backward)
      pairs.push_back({{forward, forward, backward, backward}});
  }
  return pairs;
}

}  // namespace tessera::planner
