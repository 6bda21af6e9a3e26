// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/unit_cost.h"

#include <algorithm>
#include <cmath>

#include "tessera/plan/spans.h"

namespace tessera::planner {
namespace {

/// In c pieces all but a share of 1/c of computation and exchange can go on at the same time.
double exposed(double compute, double exchange, double pieces, const Profile& profile) {
  if (pieces == 1) return exchange;
  const double share = 1 - 1 / pieces;
  return exchange / pieces + together(compute * share, exchange * share, profile) - compute * share;
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
  const PassTimes times = tables.units.at(tables.kinds[index], unit, question.batch);
  UnitCost cost{.forward = times.forward, .backward = times.backward};
  if (!unit.is_cut()) return cost;
  const plan::PassBytes bytes =
      plan::exchanged_by_pass(tables.profile.model, question.plan, index, question.inputs);
  if (bytes.forward == 0) return cost;
  const LinkCost link = links.of_group("exchange", tensor_span(question.plan, unit), stage);
  const double sent = static_cast<double>((unit.layout.tensor - 1) * question.batch);
  const double messages = tables.exchanges[index];
  const double backward_messages = std::round(messages * bytes.backward / bytes.forward);
  const int64_t most_pieces = std::max<int64_t>(std::min(question.pieces, question.batch), 1);
  const auto pieces = static_cast<double>(link.own_time ? 1 : most_pieces);
  const double forward = link.seconds(bytes.forward * sent, messages * pieces),
               backward = link.seconds(bytes.backward * sent, backward_messages * pieces);
  cost.exchange_forward = exposed(times.forward, forward, pieces, tables.profile);
  cost.exchange_backward = exposed(times.backward, backward, pieces, tables.profile);
  cost.hidden_forward = std::max(forward - cost.exchange_forward, 0.0);
  cost.hidden_backward = std::max(backward - cost.exchange_backward, 0.0);
  return cost;
}

}  // namespace tessera::planner
