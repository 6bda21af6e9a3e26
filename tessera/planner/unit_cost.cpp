// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/unit_cost.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

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

/// Seconds of a unit's exchanges.
struct Exchanges {
  ExchangeTime forward, backward;
  double lag_forward = 0, lag_backward = 0;  // waiting for the slowest rank, beside what is exposed
  double waited_forward() const { return forward.exposed + lag_forward; }
  double waited_backward() const { return backward.exposed + lag_backward; }
};

/// Finds the times of exchanges of one unit.
class UnitExchanges {
 public:
  /// (More than 5 parameters: what unit_cost() has, and the passes.)
  UnitExchanges(const ProfileTables& tables, const StepQuestion& question, LinkTable& links, int64_t stage,
                size_t index, const PassTimes& times)
      : tables_(tables), question_(question), links_(links), stage_(stage), index_(index), times_(times) {}

  /// What was measured with peers, if it was. Where it was measured in another way than `unit` and the
  /// question's pieces, links say what that changes. Nothing where the unit exchanges nothing.
  std::optional<Exchanges> find(const plan::UnitPlan& unit) {
    std::optional<Exchanges> found = on_links(unit, question_.pieces);
    if (!found || !times_.peers || is_across_hosts_ || times_.peers->transport != transport_) return found;
    const bool is_as_measured =
        times_.peers->pieces == question_.pieces && times_.peers->keep_gathered == unit.keep_gathered;
    plan::UnitPlan measured = unit;
    measured.keep_gathered = times_.peers->keep_gathered;
    const Exchanges known = is_as_measured ? *found : *on_links(measured, times_.peers->pieces);
    const auto corrected = [](double measured_seconds, double here, double there) {
      return std::max(measured_seconds + here - there, 0.0);
    };
    Exchanges with_peers{{found->forward.alone,
                          corrected(times_.peers->forward, found->waited_forward(), known.waited_forward())},
                         {found->backward.alone, 0}};
    if (found->backward.alone > 0)
      with_peers.backward.exposed =
          corrected(times_.peers->backward, found->waited_backward(), known.waited_backward());
    return with_peers;
  }

 private:
  std::optional<Exchanges> on_links(const plan::UnitPlan& unit, int64_t most_pieces) {
    const plan::PassBytes bytes =
        plan::exchanged_by_pass(tables_.profile.model, unit, index_, question_.inputs);
    if (bytes.forward == 0) return std::nullopt;
    const int64_t pieces = std::max<int64_t>(std::min(most_pieces, question_.batch), 1);
    const ExchangeCost cost = links_.exchange(tensor_span(question_.plan, unit), stage_, pieces);
    is_across_hosts_ = cost.link.times->kind == kHosts;
    transport_ = cost.link.times->transport;
    const double sent = static_cast<double>((unit.layout.tensor - 1) * question_.batch);
    const double messages = tables_.exchanges[index_];
    const double backward_messages = std::round(messages * bytes.backward / bytes.forward);
    // Measured pieces have what a rank waits for the slowest.
    const double lag = cost.in_pieces == nullptr ? tables_.profile.unit_lag : 0;
    return Exchanges{
        exchange_time(cost, bytes.forward * sent, messages, times_.forward, tables_.profile),
        exchange_time(cost, bytes.backward * sent, backward_messages, times_.backward, tables_.profile),
        lag * times_.forward, bytes.backward > 0 ? lag * times_.backward : 0};
  }

  const ProfileTables& tables_;
  const StepQuestion& question_;
  LinkTable& links_;
  const int64_t stage_;
  const size_t index_;
  const PassTimes& times_;
  bool is_across_hosts_ = false;
  std::string transport_;
};

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
  const auto exchanges = UnitExchanges(tables, question, links, stage, index, times).find(unit);
  if (!exchanges) return cost;
  cost.exchanges = true;
  cost.exchange_forward = exchanges->waited_forward();
  cost.exchange_backward = exchanges->waited_backward();
  cost.hidden_forward = exchanges->forward.hidden();
  cost.hidden_backward = exchanges->backward.hidden();
  return cost;
}

}  // namespace tessera::planner
