// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/mesh_panel.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/monitor/picture_frame.h"
#include "tessera/monitor/svg.h"
#include "tessera/plan/spans.h"

namespace tessera::monitor {
namespace {

constexpr double kSquare = 26, kGap = 5, kGroupGap = 12;
constexpr int64_t kColours = 8;     // classes m0 to m7
constexpr double kCharacter = 6.2;  // average width
constexpr size_t kMostAtLeft = 27;  // characters

/// Index of the first unit with the layout that most cut units of the stage have; else of its first unit.
size_t typical_unit(const plan::Plan& plan, int64_t stage) {
  std::map<std::pair<int64_t, bool>, std::pair<int64_t, size_t>> found;  // layout: units, the first of them
  std::pair<int64_t, size_t> most{0, plan::units_of_virtual_stage(plan, stage).first};
  for (int64_t part = 0; part < plan.virtual_stages; ++part) {
    const auto [begin, end] = plan::units_of_virtual_stage(plan, part * plan.stages + stage);
    for (size_t i = begin; i < end; ++i) {
      const plan::UnitPlan& unit = plan.units[i];
      if (!unit.is_cut()) continue;
      auto& [units, first] = found[{unit.layout.tensor, unit.layout.adjacent}];
      if (units++ == 0) first = i;
      if (units > most.first) most = {units, first};
    }
  }
  return most.second;
}

/// Ranks of a stage, those of a tensor group beside each other.
std::vector<int64_t> ranks_in_groups(const plan::Plan& plan, int64_t stage) {
  const plan::Span groups = plan::tensor_span(plan, plan.units[typical_unit(plan, stage)]);
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < plan.stage_ranks(); ++i) ranks.push_back(stage * plan.stage_ranks() + i);
  std::ranges::sort(ranks, {}, [&](int64_t rank) {
    return std::pair(plan::base_of(groups, rank), plan::position_in(groups, rank));
  });
  return ranks;
}

std::string bracket(double left, double right, double y) {
  using svg::length;
  return svg::path("bracket", concat('M', length(left), ' ', length(y), "v4H", length(right), "v-4"));
}

struct Squares {
  std::string elements;
  double right = 0;
};

/// The squares of a stage, and the brackets below them.
Squares squares(const plan::Plan& plan, int64_t stage, double top) {
  const std::vector<int64_t> ranks = ranks_in_groups(plan, stage);
  const auto group = static_cast<size_t>(mesh_position(plan, ranks.front()).tensor_ranks);
  const size_t drawn = std::min(ranks.size(), static_cast<size_t>(kMostRanks));
  const double wanted = static_cast<double>(drawn) * (kSquare + kGap) +
                        (group > 1 ? static_cast<double>((drawn - 1) / group) * kGroupGap : 0);
  const double room = kPlotRight - kPlotLeft - (drawn < ranks.size() ? 110 : 0);
  const double scale = std::min(1.0, room / wanted);
  std::string out;
  double x = kPlotLeft, group_left = x;
  for (size_t i = 0; i < drawn; ++i) {
    if (i % group == 0) group_left = x;
    const MeshPosition place = mesh_position(plan, ranks[i]);
    const std::string colour = place.data_ranks > 1 ? concat('m', place.tensor % kColours) : "alone";
    out += svg::rect({x, top, scale * kSquare, kSquare}, concat("square ", colour));
    out += svg::text({x + scale * kSquare / 2, top + 17}, scale < 0.8 ? "mid small" : "mid",
                     std::to_string(ranks[i]));
    x += scale * (kSquare + kGap);
    const bool ends_group = (i + 1) % group == 0 || i + 1 == drawn;
    if (!ends_group || group == 1) continue;
    out += bracket(group_left, x - scale * kGap, top + kSquare + 3);
    x += scale * kGroupGap;
  }
  if (drawn < ranks.size()) {
    out += svg::text({x, top + 17}, "note", concat("and ", ranks.size() - drawn, " more ranks"));
    x = kPlotRight;
  }
  return {out, x};
}

/// Which units a stage holds: right of its squares, or where there is no room below its name.
std::string units_label(const plan::Plan& plan, int64_t stage, double right, double top) {
  const std::string units = units_text(plan, stage);
  const double x = right + 8;
  if (x + kCharacter * static_cast<double>(units.size()) < kPlotRight)
    return svg::text({x, top + 17}, "note", units);
  return svg::text({kMargin, top + 30}, "note", svg::shortened(units, kMostAtLeft));
}

std::string legend(const plan::Plan& plan) {
  std::vector<std::string> words;
  bool tensor = false, data = false;
  for (int64_t stage = 0; stage < plan.stages; ++stage) {
    const MeshPosition place = mesh_position(plan, stage * plan.stage_ranks());
    tensor = tensor || place.tensor_ranks > 1;
    data = data || place.data_ranks > 1;
  }
  if (tensor) words.emplace_back("bracket: tensor group, which computes a block together");
  if (data) {
    words.emplace_back(plan.stages > 1 ? "same colour in a stage: data-parallel group"
                                       : "same colour: data-parallel group");
  }
  return join(words, "; ");
}

}  // namespace

MeshPosition mesh_position(const plan::Plan& plan, int64_t rank) {
  const plan::UnitPlan& unit = plan.units[typical_unit(plan, plan::stage_of(plan, rank))];
  const plan::Span tensor = plan::tensor_span(plan, unit), data = plan::data_parallel_span(plan, unit);
  return {plan::position_in(tensor, rank), tensor.size, plan::position_in(data, rank), data.size};
}

std::string units_text(const plan::Plan& plan, int64_t stage) {
  std::vector<std::string> ranges;
  for (int64_t part = 0; part < plan.virtual_stages; ++part) {
    const auto [begin, end] = plan::units_of_virtual_stage(plan, part * plan.stages + stage);
    const std::string &first = plan.units[begin].name, &last = plan.units[end - 1].name;
    ranges.push_back(end - begin == 1 ? first : concat(first, " to ", last));
  }
  return join(ranges, ", ");
}

Panel mesh_panel(const plan::Plan& plan, double top) {
  constexpr double kHeading = 22, kRow = 34, kBracket = 8;
  Panel panel;
  panel.elements = concat("<g id=\"mesh\">\n", svg::text({kMargin, top + 12}, "heading", "Mesh"),
                          svg::text({kPlotLeft, top + 12}, "note", legend(plan)));
  double y = top + kHeading;
  for (int64_t stage = 0; stage < plan.stages; ++stage) {
    const std::string name = plan.stages > 1 ? concat("stage ", stage) : std::string("all ranks");
    const Squares row = squares(plan, stage, y);
    panel.elements += concat("<g class=\"mesh-row\">\n", svg::text({kMargin, y + 17}, "name", name),
                             row.elements, units_label(plan, stage, row.right, y), "</g>\n");
    y += kRow + (mesh_position(plan, stage * plan.stage_ranks()).tensor_ranks > 1 ? kBracket : 0);
  }
  panel.elements += "</g>\n";
  panel.height = y - top;
  return panel;
}

}  // namespace tessera::monitor
