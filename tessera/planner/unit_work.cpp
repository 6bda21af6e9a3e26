// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/unit_work.h"

#include <algorithm>

#include "tessera/planner/lookup.h"
#include "tessera/planner/unit_cost.h"

namespace tessera::planner {
namespace {

using plan::Level;

struct Message {
  double seconds = 0;
  bool own_time = false;  // the rank copies by itself
};

/// Writes the passes of one unit at one place.
class PassWriter {
 public:
  PassWriter(std::array<PassWork, kPassKinds>* passes, Place place) : passes_(*passes), place_(place) {}

  /// `is_main`: on the unit's channel; messages of others are counted where the rank makes them by itself.
  void add(Pass pass, double PassWork::*beside, const Message& message, bool is_main, bool is_exposed) {
    if (message.own_time || (is_main && is_exposed)) {
      passes_[pass].occupied += message.seconds;
    } else if (is_main) {
      passes_[pass].*beside += message.seconds;
    }
  }

  void add_gathers(Level level, bool is_trained, const Message& gather, bool is_main) {
    if (level == Level::kReplicate) return;
    add(kFirstForward, &PassWork::gathers, gather, is_main, place_.is_first);
    if (level != Level::kZero3 || (place_.is_last && place_.is_first)) return;
    // The last unit of a part stays gathered until its backward pass has ended, and that may be the next but
    // one: only its first gather is certain.
    if (place_.is_last) return;
    add(kForward, &PassWork::gathers, gather, is_main, place_.is_first);
    if (!is_trained) return;
    add(kBackward, &PassWork::gathers, gather, is_main, false);
    add(kLastBackward, &PassWork::gathers, gather, is_main, false);
  }

  void add_sums(Level level, const Message& reduce, const Message& replicas, bool is_sharded, bool is_main) {
    if (is_sharded) {
      if (level >= Level::kZero2) add(kBackward, &PassWork::sums, reduce, is_main, place_.is_first);
      add(kLastBackward, &PassWork::sums, reduce, is_main, place_.is_first);
    }
    // Of a unit that is sharded and replicated the replicas have another channel.
    const bool on_channel = is_main && (!is_sharded || place_.is_first);
    add(kLastBackward, &PassWork::sums, replicas, on_channel, place_.is_first);
    add(kLastBackward, &PassWork::copies, replicas, on_channel, place_.is_first);
  }

 private:
  std::array<PassWork, kPassKinds>& passes_;
  Place place_;
};

}  // namespace

std::vector<UnitWork> unit_works(const ProfileTables& tables, const StepQuestion& question,
                                 const std::vector<plan::UnitMessages>& messages) {
  const Profile& profile = tables.profile;
  const int64_t of_host =
      question.ranks_of_host > 0 ? question.ranks_of_host : profile.provenance.ranks_of_host;
  LinkTable links(profile, question.plan, of_host, question.shared_memory);
  const auto message = [&](const char* operation, const plan::Span& span, double bytes) {
    if (bytes == 0) return Message();
    const LinkCost link = links.of_group(operation, span, 0);
    return Message{link.seconds(bytes), link.own_time};
  };
  const std::vector<plan::UnitMemory> memory =
      plan::unit_memory(profile.model, question.plan, question.inputs, question.batch, /*rank=*/0);
  std::vector<UnitWork> works(question.plan.units.size());
  for (size_t i = 0; i < works.size(); ++i) {
    UnitWork& work = works[i];
    work.memory = memory[i];
    const UnitCost cost = unit_cost(tables, question, links, 0, i);
    const bool is_trained = static_cast<int64_t>(i) >= question.inputs.frozen_units;
    for (auto& passes : work.passes) {
      for (const Pass pass : {kFirstForward, kForward})
        passes[pass] = {cost.forward, cost.exchange_forward, 0};
      if (!is_trained) continue;
      for (const Pass pass : {kBackward, kLastBackward})
        passes[pass] = {cost.backward, cost.exchange_backward, 0};
    }
  }
  for (const plan::UnitMessages& one : messages) {
    UnitWork& work = works[one.index];
    const bool is_main = one.name == question.plan.units[one.index].name;
    const bool is_sharded = one.shard.size > 1;
    if (is_main) work.channel = is_sharded ? one.shard : one.replicate;
    const Message gather = message("all_gather", one.shard, one.gather),
                  reduce = message("reduce_scatter", one.shard, one.reduce),
                  scatter = message("reduce_scatter", one.replicate, one.replicas),
                  collect = message("all_gather", one.replicate, one.replicas);
    // One after the other: the shorter stands for both.
    const Message replicas = {std::min(scatter.seconds, collect.seconds),
                              scatter.own_time && collect.own_time};
    if (one.trained) work.optimizer += one.owned * profile.optimizer_seconds;
    for (size_t place = 0; place < work.passes.size(); ++place) {
      PassWriter writer(&work.passes[place], {(place & 1) != 0, (place & 2) != 0});
      writer.add_gathers(one.level, one.trained, gather, is_main);
      if (!one.trained) continue;
      writer.add_sums(one.level, reduce, replicas, is_sharded, is_main);
    }
    if (!one.trained) continue;
    work.first_accumulation += accumulation_seconds(profile, one, true, question.accumulation);
    work.accumulation += accumulation_seconds(profile, one, false, question.accumulation);
  }
  return works;
}

double BoundForm::of(const PassWork& work) const {
  const double messages = gathers * work.gathers + sums * work.sums + copies * work.copies;
  const double own = compute * work.compute + occupied * work.occupied;
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
/// one channel all messages together, with any prefetch.
///
/// And with such a prefetch only the pass of one unit is beside the gather of the next, or beside the sum of
/// the one before it: the two take at least max(own, message) >= min(own, w) + max(message - w, 0) for any w.
namespace {

/// E + C + k (M - E) and M + C c (1 - 1/l), where M is gathers, sums and copies as `messages` says.
void add_overlap(const Profile& profile, const BoundForm& messages, std::vector<BoundForm>* forms) {
  const double c = profile.compute_slowdown, l = profile.link_slowdown;
  const double k = std::min(l * (1 - 1 / c), 1.0), beside_messages = std::min(c * (1 - 1 / l), 1.0);
  if (k > 0) forms->push_back({1, 1 - k, k * messages.gathers, k * messages.sums, k * messages.copies, 0});
  forms->push_back({beside_messages, 0, messages.gathers, messages.sums, messages.copies, 0});
}

constexpr BoundForm kAlone, kGathers = {0, 0, 1, 0, 0, 0}, kSums = {0, 0, 0, 1, 0, 0},
                            kMessages = {0, 0, 1, 1, 1, 0};

}  // namespace

BoundForms forms_of_one_channel(const Profile& profile) {
  std::vector<BoundForm> forms = {kAlone};
  add_overlap(profile, kMessages, &forms);
  const BoundForm& other = forms.back();  // the mean bounds passes of which some units wait for messages
  forms.push_back({(1 + other.compute) / 2, 0.5, 0.5, 0.5, 0.5, 0});
  return {forms, forms};
}

BoundForms forms_of_channels(const Profile& profile, const PassWindows& windows) {
  BoundForms forms = {{kAlone}, {kAlone}};
  forms.forward.push_back({1, 1, 1, 0, 0, windows.forward});
  add_overlap(profile, kGathers, &forms.forward);
  forms.backward.push_back({1, 1, 1, 0, 0, windows.backward});
  forms.backward.push_back({1, 1, 0, 1, 0, windows.backward});
  add_overlap(profile, kGathers, &forms.backward);
  add_overlap(profile, kSums, &forms.backward);
  return forms;
}

std::vector<StepForm> step_forms(const BoundForms& forms) {
  std::vector<StepForm> pairs;
  for (const BoundForm& forward : forms.forward) {
    for (const BoundForm& backward : forms.backward) pairs.push_back({forward, backward});
  }
  return pairs;
}

}  // namespace tessera::planner
