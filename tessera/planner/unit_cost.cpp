// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/unit_cost.h"

#include <algorithm>
#include <cmath>

#include "tessera/plan/spans.h"

namespace tessera::planner {
namespace {

struct ExchangeTime {
  double alone = 0, exposed = 0;
  double hidden() const { return std::max(alone - exposed, 0.0); }
};

/// Of `messages` beside `compute` seconds of computation. Nothing is hidden in one piece. Measured pieces:
/// from the whole exchange without computation to what remains beside as much of it. Else all but a share of
/// 1/c of computation and of messages, one after another, go on at the same time.
ExchangeTime exchange_time(const ExchangeCost& cost, double bytes, double messages, double compute,
                           const Profile& profile) {
  if (cost.pieces == 1 || bytes == 0) {
    const double seconds = cost.link.seconds(bytes, messages);
    return {seconds, seconds};
  }
  if (cost.in_pieces != nullptr) {
    const auto [alone, exposed] = cost.seconds(bytes, messages);
    const double uncovered = alone > 0 ? std::max(1 - compute / alone, 0.0) : 0;
    return {alone, exposed + uncovered * (alone - exposed)};
  }
  const double alone = cost.link.seconds(bytes, messages * cost.pieces);
  const double share = 1 - 1 / cost.pieces;
  return {alone, alone / cost.pieces + together(compute * share, alone * share, profile) - compute * share};
}

/// Was it measured how much `exchange` adds to a unit that is cut like this one?
bool is_measured(const PassTimes& times, const plan::UnitPlan& unit, const ExchangeCost& exchange,
                 int64_t pieces) {
  const LinkTimes& link = *exchange.link.times;
  return times.peers && link.kind != kHosts && times.peers->transport == link.transport &&
         times.peers->pieces == pieces && times.peers->keep_gathered == unit.keep_gathered;
}

}  // namespace

double together(double compute, double message, const Profile& profile) {
  const double slow_compute = compute * profile.compute_slowdown,
               slow_message = message * profile.link_slowdown;
  return slow_compute <= slow_message ? slow_compute + message - slow_compute / profile.link_slowdown
                                      : slow_message + compute - slow_message / profile.compute_slowdown;
}

double accumulation_seconds(const Profile& profile, const plan::UnitMessages& unit, bool is_first,
                            int64_t micro_batches) {
  if (unit.shard.size > 1 && unit.level != plan::Level::kZero1)
    return is_first ? 0 : unit.owned * profile.add_sum_seconds;
  const bool nothing_is_added = unit.shard.size == 1 && unit.replicate.size == 1 && micro_batches == 1;
  if (nothing_is_added) return 0;
  return unit.values * (is_first ? profile.widen_seconds : profile.accumulate_seconds);
}

UnitCost unit_cost(const ProfileTables& tables, const StepQuestion& question, LinkTable& links, int64_t stage,
                   size_t index) {
  const plan::UnitPlan& unit = question.plan.units[index];
  PassTimes times = tables.units.at(tables.kinds[index], unit, question.batch);
  if (question.plan.world == 1) {  // the default of run.cuda_graphs
    times.forward *= times.replayed;
    times.backward *= times.replayed;
  }
  UnitCost cost{.forward = times.forward, .backward = times.backward};
  if (!unit.is_cut()) return cost;
  const plan::PassBytes bytes =
      plan::exchanged_by_pass(tables.profile.model, question.plan, index, question.inputs);
  if (bytes.forward == 0) return cost;
  const int64_t pieces = std::max<int64_t>(std::min(question.pieces, question.batch), 1);
  const ExchangeCost exchange = links.exchange(tensor_span(question.plan, unit), stage, pieces);
  const double sent = static_cast<double>((unit.layout.tensor - 1) * question.batch);
  const double messages = tables.exchanges[index];
  const double backward_messages = std::round(messages * bytes.backward / bytes.forward);
  ExchangeTime forward =
      exchange_time(exchange, bytes.forward * sent, messages, times.forward, tables.profile);
  ExchangeTime backward =
      exchange_time(exchange, bytes.backward * sent, backward_messages, times.backward, tables.profile);
  // What was measured with peers has what a rank waits for the slowest.
  double lag = exchange.in_pieces == nullptr ? tables.profile.unit_lag : 0;
  if (is_measured(times, unit, exchange, question.pieces)) {
    forward.exposed = times.peers->forward;
    backward.exposed = bytes.backward > 0 ? times.peers->backward : 0;
    lag = 0;
  }
  cost.exchanges = true;
  cost.exchange_forward = forward.exposed + lag * times.forward;
  cost.exchange_backward = backward.exposed + (bytes.backward > 0 ? lag * times.backward : 0);
  cost.hidden_forward = forward.hidden();
  cost.hidden_backward = backward.hidden();
  return cost;
}

}  // namespace tessera::planner
