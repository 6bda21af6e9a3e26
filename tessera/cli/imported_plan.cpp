// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/imported_plan.h"

#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/spans.h"

namespace tessera::cli {
namespace {

constexpr int64_t kGroupsShown = 8, kRanksShown = 8;  // of a large world the first ones are enough

/// Ranks [begin, end).
struct RankRange {
  int64_t begin = 0, end = 0;
};

/// "0,2 | 1,3": the groups of a span among these ranks, each with its ranks.
std::string groups_text(const plan::Span& span, RankRange all_ranks) {
  std::vector<std::string> groups;
  for (int64_t rank = all_ranks.begin; rank < all_ranks.end && groups.size() < kGroupsShown; ++rank) {
    if (plan::base_of(span, rank) != rank) continue;
    std::vector<std::string> names;
    for (int64_t i = 0; i < std::min(span.size, kRanksShown); ++i)
      names.push_back(std::to_string(rank + i * span.stride));
    if (span.size > kRanksShown) names.back() = concat("...,", rank + (span.size - 1) * span.stride);
    groups.push_back(join(names, ","));
  }
  const int64_t all = (all_ranks.end - all_ranks.begin) / span.size;
  return concat(join(groups, " | "), all > kGroupsShown ? concat(" | ... (", all, " groups)") : "");
}

std::string layout_text(const plan::UnitPlan& unit) {
  std::string text = plan::to_string(unit.level);
  if (unit.is_cut())
    text += concat(", tensor ", unit.layout.tensor, unit.layout.adjacent ? " (adjacent)" : " (strided)");
  return unit.recomputes() ? text + ", recompute" : text;
}

/// Of the units [first, last], which are laid out alike: those of their stages.
void print_groups(const plan::Plan& plan, size_t first, size_t last, std::ostream& out) {
  const plan::UnitPlan& unit = plan.units[first];
  const RankRange ranks{plan::stage_of_unit(plan, first) * plan.stage_ranks(),
                        (plan::stage_of_unit(plan, last) + 1) * plan.stage_ranks()};
  if (unit.is_cut()) out << "  tensor groups: " << groups_text(plan::tensor_span(plan, unit), ranks) << '\n';
  out << "  data-parallel groups: " << groups_text(plan::data_parallel_span(plan, unit), ranks) << '\n';
}

/// "blocks.0-11", or of a family whose blocks have stages "layer1.0 to layer2.3".
std::string blocks_text(const std::string& first, const std::string& last) {
  const size_t dot = last.rfind('.');
  if (first == last) return first;
  if (first.substr(0, first.rfind('.')) == last.substr(0, dot))
    return concat(first, "-", last.substr(dot + 1));
  return concat(first, " to ", last);
}

bool is_laid_out_alike(plan::UnitPlan a, const plan::UnitPlan& b) {
  a.name = b.name;
  return a == b;
}

/// The units behind the stem and before the head: Galvatron's layers.
void print_layers(const plan::Plan& plan, std::ostream& out) {
  const size_t end = plan.units.size() - 1;
  for (size_t first = 1, last = 1; first < end; first = last + 1) {
    last = first;
    while (last + 1 < end && is_laid_out_alike(plan.units[first], plan.units[last + 1])) ++last;
    const plan::UnitPlan& unit = plan.units[first];
    out << (first == last ? concat("layer ", first - 1) : concat("layers ", first - 1, "-", last - 1)) << ", "
        << blocks_text(unit.name, plan.units[last].name) << ": " << layout_text(unit) << '\n';
    print_groups(plan, first, last, out);
  }
}

void print_stages(const plan::Plan& plan, std::ostream& out) {
  if (plan.stages == 1) return;
  out << plan.stages << " pipeline stages, " << plan::to_string(plan.schedule) << ", " << plan.micro_batches
      << (plan.micro_batches == 1 ? " micro-batch" : " micro-batches") << " per step\n";
  for (int64_t stage = 0; stage < plan.stages; ++stage) {
    const auto [first, end] = plan::units_of_virtual_stage(plan, stage);
    const int64_t ranks = plan.stage_ranks();
    out << "  stage " << stage << ", "
        << (ranks == 1 ? concat("rank ", stage)
                       : concat("ranks ", stage * ranks, "-", (stage + 1) * ranks - 1))
        << ": " << plan.units[first].name;
    if (end - first > 1) out << " to " << plan.units[end - 1].name;
    out << '\n';
  }
}

}  // namespace

void print_imported(const plan::GalvatronImport& imported, std::ostream& out) {
  const plan::Plan& plan = imported.plan;
  out << plan.units.size() - 2 << " layers on " << plan.world << (plan.world == 1 ? " rank\n" : " ranks\n");
  print_stages(plan, out);
  print_layers(plan, out);
  const plan::UnitPlan& stem = plan.units.front();
  out << "stem and head: " << layout_text(stem) << '\n';
  print_groups(plan, 0, plan.units.size() - 1, out);
}

}  // namespace tessera::cli
