// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/tensor_facts.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "tessera/arch/cut.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/eager/session.h"
#include "tessera/monitor/number.h"
#include "tessera/plan/spans.h"
#include "tessera/plan/traffic.h"

namespace tessera::train {
namespace {

using Rows = std::vector<std::pair<std::string, std::string>>;

constexpr size_t kRowsOfUnits = 8;  // of a plan with many kinds of units the first ones are shown

bool is_cut(const plan::Plan& plan) { return std::ranges::any_of(plan.units, &plan::UnitPlan::is_cut); }

/// Neighbours in a stage that differ in their names alone.
struct UnitRange {
  const plan::UnitPlan* first = nullptr;
  const plan::UnitPlan* last = nullptr;
  int64_t stage = 0;
  std::string name() const {  // "blocks.0-11"
    const std::string& end = last->name;
    return first == last ? first->name : concat(first->name, "-", end.substr(end.rfind('.') + 1));
  }
};

std::vector<UnitRange> cut_ranges(const plan::Plan& plan) {
  std::vector<UnitRange> ranges;
  for (size_t i = 0; i < plan.units.size(); ++i) {
    const plan::UnitPlan& unit = plan.units[i];
    if (!unit.is_cut()) continue;
    const int64_t stage = plan::stage_of_unit(plan, i);
    plan::UnitPlan as_before = unit;
    if (!ranges.empty()) as_before.name = ranges.back().last->name;
    if (!ranges.empty() && ranges.back().last + 1 == &unit && ranges.back().stage == stage &&
        as_before == *ranges.back().last) {
      ranges.back().last = &unit;
    } else {
      ranges.push_back({&unit, &unit, stage});
    }
  }
  return ranges;
}

std::string part_text(int64_t part, int64_t all, const char* what) {
  return concat(part, " of ", all, " ", what);
}

/// "3 of 6 heads and 768 of 1536 hidden units".
std::string held_text(const arch::ModelConfig& config, int64_t degree, int64_t index) {
  const auto hidden = [&](int64_t all) {
    return part_text(arch::hidden_of(all, degree, index), all, "hidden units");
  };
  if (config.family() == arch::ResMlpConfig::kFamily)
    return hidden(config.as<arch::ResMlpConfig>().mlp_width);
  const auto& vit = config.as<arch::VitConfig>();
  return concat(part_text(arch::items_of(vit.heads, degree, index).size(), vit.heads, "heads"), " and ",
                hidden(vit.mlp_width));
}

/// Where the state of a rank's part of a unit is.
std::string state_text(const plan::Plan& plan, const plan::UnitPlan& unit, int64_t rank) {
  const plan::Span shard = shard_span(plan, unit), replicas = replicate_span(plan, unit);
  const std::string same = ranks_text(replicas, rank);
  if (shard.size == 1)
    return concat("the state of this part is on ",
                  replicas.size == 1 ? "this rank alone" : "each of " + same);
  return concat("the state of this part is split over ", ranks_text(shard, rank),
                replicas.size == 1 ? "" : concat("; ", same, " hold the same"));
}

void add_units(const Prepared& p, Rows& rows) {
  const std::vector<UnitRange> ranges = cut_ranges(p.plan);
  const int64_t in_stage = p.ranks.rank % p.plan.stage_ranks();
  for (size_t i = 0; i < std::min(ranges.size(), kRowsOfUnits); ++i) {
    const plan::UnitPlan& unit = *ranges[i].first;
    const int64_t rank = ranges[i].stage * p.plan.stage_ranks() + in_stage;  // its place in that stage
    const plan::Span tensor = tensor_span(p.plan, unit);
    rows.emplace_back(concat("tensor parallelism of ", ranges[i].name()),
                      concat(ranks_text(tensor, rank), " compute together; rank ", rank, " has ",
                             held_text(p.job.recipe.model, tensor.size, position_in(tensor, rank)), "; ",
                             state_text(p.plan, unit, rank)));
  }
  if (ranges.size() > kRowsOfUnits)
    rows.emplace_back("tensor parallelism", concat(ranges.size() - kRowsOfUnits, " more groups of units"));
}

/// The rank with most heads decides how long attention takes.
void add_uneven_heads(const Prepared& p, Rows& rows) {
  const auto* vit = std::get_if<arch::VitConfig>(&p.job.recipe.model.of);
  if (vit == nullptr) return;
  std::set<int64_t> degrees;
  for (const plan::UnitPlan& unit : p.plan.units) degrees.insert(unit.layout.tensor);
  for (const int64_t degree : degrees) {
    if (vit->heads % degree == 0) continue;
    const int64_t most = (vit->heads + degree - 1) / degree;
    std::vector<std::string> of_ranks;
    for (int64_t i = 0; i < degree; ++i)
      of_ranks.push_back(std::to_string(arch::items_of(vit->heads, degree, i).size()));
    rows.emplace_back(
        concat("heads over ", degree, " ranks"),
        concat(vit->heads, " heads do not divide evenly (", join(of_ranks, ", "),
               " in the group's order): attention takes ",
               monitor::print("%.3g", static_cast<double>(most * degree) / static_cast<double>(vit->heads)),
               " times as long as with an even split"));
  }
}

/// The same plan with whole units at zero3 in the place of those that are cut.
plan::Plan with_zero3(plan::Plan plan) {
  for (plan::UnitPlan& unit : plan.units) {
    if (!unit.is_cut()) continue;
    unit.layout = {};
    unit.keep_gathered = false;
    unit.level = plan::Level::kZero3;
    unit.shard = 0;
    if (unit.recompute == plan::Recompute::kKeepSums) unit.recompute = plan::Recompute::kAll;
  }
  return plan;
}

/// The most images for which `less` sends no more than `more`; 0: none, or kMostImages where it is more.
constexpr int64_t kMostImages = int64_t{1} << 20;

int64_t images_up_to(const std::function<double(int64_t images)>& less,
                     const std::function<double(int64_t images)>& more) {
  const auto holds = [&](int64_t images) { return less(images) <= more(images); };
  int64_t held = 0, beyond = 1;
  while (beyond <= kMostImages && holds(beyond)) held = std::exchange(beyond, 2 * beyond);
  if (beyond > kMostImages) return kMostImages;
  while (beyond - held > 1) {
    const int64_t middle = (held + beyond) / 2;
    (holds(middle) ? held : beyond) = middle;
  }
  return held;
}

void add_traffic(const Prepared& p, Rows& rows) {
  const auto inputs = eager::cost_inputs(p.job.recipe, p.ranks.world, p.device);
  const auto sent = [&](const plan::Plan& plan, int64_t batch) {
    return plan::step_traffic(p.job.recipe.model, plan, inputs, p.sizes.accumulation, batch);
  };
  const plan::StepTraffic now = sent(p.plan, p.sizes.per_rank);
  rows.emplace_back(
      p.plan.stages > 1 ? "sent per step by the rank that sends most" : "sent per rank and step",
      concat(human_bytes(now.total()), " (activations between tensor ranks ", human_bytes(now.exchanged),
             now.passed > 0 ? concat(", to other stages ", human_bytes(now.passed)) : "", ", parameters ",
             human_bytes(now.gathered), ", gradients ", human_bytes(now.reduced), ")"));
  // Stages pass on the same activations in both plans.
  const plan::Plan other = with_zero3(p.plan);
  const int64_t images = images_up_to([&](int64_t batch) { return sent(p.plan, batch).total(); },
                                      [&](int64_t batch) { return sent(other, batch).total(); });
  rows.emplace_back("zero3 in the place of tensor parallelism",
                    concat("would send ", human_bytes(sent(other, p.sizes.per_rank).total()),
                           images == kMostImages ? "; tensor parallelism sends less for any number of"
                                                 : concat("; tensor parallelism sends less up to ", images),
                           " images per rank and micro-batch (here ", p.sizes.per_rank, ")"));
}

/// The first tensor group with ranks of several hosts as "blocks.0-11: ranks 0,1"; "": there is none.
std::string spanning_group(const plan::Plan& plan, int64_t ranks_of_host) {
  for (const UnitRange& range : cut_ranges(plan)) {
    const plan::Span span = tensor_span(plan, *range.first);
    const int64_t begin = range.stage * plan.stage_ranks();
    for (int64_t rank = begin; rank < begin + plan.stage_ranks(); ++rank) {
      const std::vector<int64_t> ranks = ranks_of(span, rank);
      if (ranks.front() / ranks_of_host != ranks.back() / ranks_of_host)
        return concat(range.name(), ": ", ranks_text(span, rank));
    }
  }
  return "";
}

/// Of the rank that sends most to other hosts.
double bytes_between_hosts(const Prepared& p) {
  const plan::CostInputs inputs = eager::cost_inputs(p.job.recipe, p.ranks.world, p.device);
  using ByStage = std::map<plan::Span, double>;  // bytes a step to each rank of such a group
  std::vector<ByStage> with_one(static_cast<size_t>(p.plan.stages));
  for (size_t i = 0; i < p.plan.units.size(); ++i) {
    if (!p.plan.units[i].is_cut()) continue;
    with_one[static_cast<size_t>(plan::stage_of_unit(p.plan, i))][tensor_span(p.plan, p.plan.units[i])] +=
        plan::exchanged_per_image(p.job.recipe.model, p.plan, i, inputs) *
        static_cast<double>(p.sizes.per_rank * p.sizes.accumulation);
  }
  double most = 0;
  for (int64_t rank = 0; rank < p.plan.world; ++rank) {
    const int64_t host = rank / p.ranks.local_world;
    double sent = 0;
    for (const auto& [span, bytes] : with_one[static_cast<size_t>(plan::stage_of(p.plan, rank))]) {
      const auto is_far = [&](int64_t other) { return other / p.ranks.local_world != host; };
      sent += bytes * static_cast<double>(std::ranges::count_if(ranks_of(span, rank), is_far));
    }
    most = std::max(most, sent);
  }
  return most;
}

}  // namespace

Rows tensor_facts(const Prepared& p) {
  Rows rows;
  if (!is_cut(p.plan)) return rows;
  add_units(p, rows);
  add_uneven_heads(p, rows);
  add_traffic(p, rows);
  return rows;
}

std::string tensor_network_warning(const Prepared& p) {
  const int64_t local = p.ranks.local_world;
  if (p.ranks.pretended() || local >= p.plan.world || !is_cut(p.plan)) return "";
  const std::string group = spanning_group(p.plan, local);
  if (group.empty()) return "";
  return concat("tensor groups have ranks of several hosts (", group, "; ", local,
                local == 1 ? " rank" : " ranks", " per host): up to ", human_bytes(bytes_between_hosts(p)),
                " of activations per rank and step go over the network",
                local == 1 ? "" : concat("; groups of ", local, " adjacent ranks stay inside a host"));
}

}  // namespace tessera::train
