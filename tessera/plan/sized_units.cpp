// SPDX-License-Identifier: Apache-2.0
#include "tessera/plan/sized_units.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "tessera/arch/cut.h"
#include "tessera/plan/spans.h"

namespace tessera::plan {
namespace {

constexpr double kIntegerBytes = 8;

bool is_of_stage(const Plan& plan, size_t unit, int64_t rank) {
  return virtual_stage_of(plan, unit) % plan.stages == stage_of(plan, rank);
}

/// Of the rank's stage, by the names of communicated units: "blocks.3", "blocks.3/rows".
std::map<std::string, UnitSize> unit_sizes(const ModelSpecs& specs, const Plan& plan, int64_t rank) {
  std::map<std::string, const UnitPlan*> plans;
  for (size_t i = 0; i < plan.units.size(); ++i)
    if (is_of_stage(plan, i, rank)) plans[plan.units[i].name] = &plan.units[i];
  const auto name_of_rest = [&](const std::string& unit) {
    return plans.at(unit)->is_cut() ? rows_plan(*plans.at(unit)).name : unit;
  };
  std::map<std::string, UnitSize> sizes;
  for (const arch::ParameterSpec& spec : specs.parameters) {
    const auto found = plans.find(spec.unit);
    if (found == plans.end()) continue;
    const UnitPlan& unit = *found->second;
    const bool cut = unit.is_cut() && spec.is_cut();
    UnitSize& size = sizes[cut ? unit.name : name_of_rest(unit.name)];
    std::vector<int64_t> shape = spec.shape;
    if (cut) shape = arch::shape_of(spec, unit.layout.tensor, position_in(tensor_span(plan, unit), rank));
    const auto numel =
        static_cast<double>(std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()));
    (spec.buffer ? size.buffers : size.parameters) += numel;
    if (!spec.buffer) size.largest = std::max(size.largest, numel);
  }
  for (const arch::BufferSpec& spec : specs.buffers) {
    if (!plans.contains(spec.unit)) continue;
    sizes[name_of_rest(spec.unit)].buffer_bytes +=
        static_cast<double>(spec.numel()) * (spec.whole_numbers ? kIntegerBytes : arch::kFloatBytes);
  }
  return sizes;
}

/// For each position in a tensor group of `degree` ranks, the first position that holds as much of every
/// parameter.
std::vector<int64_t> first_alike(const arch::ModelConfig& config, int64_t degree) {
  std::vector<arch::ParameterSpec> kinds;  // of one shape and cut, once
  for (const arch::ParameterSpec& spec : arch::parameters(config)) {
    const auto same = [&](const arch::ParameterSpec& other) {
      return other.shape == spec.shape && other.cut == spec.cut;
    };
    if (spec.is_cut() && std::ranges::none_of(kinds, same)) kinds.push_back(spec);
  }
  std::map<std::vector<std::vector<int64_t>>, int64_t> first;
  std::vector<int64_t> alike;
  for (int64_t position = 0; position < degree; ++position) {
    std::vector<std::vector<int64_t>> shapes;
    for (const arch::ParameterSpec& spec : kinds) shapes.push_back(arch::shape_of(spec, degree, position));
    alike.push_back(first.try_emplace(std::move(shapes), position).first->second);
  }
  return alike;
}

}  // namespace

ModelSpecs::ModelSpecs(const arch::ModelConfig& config)
    : parameters(arch::parameters(config)), buffers(arch::buffers(config)) {}

std::vector<SizedUnit> sized_units(const arch::ModelConfig& config, const Plan& plan, int64_t rank) {
  return sized_units(ModelSpecs(config), plan, rank);
}

std::vector<SizedUnit> sized_units(const ModelSpecs& specs, const Plan& plan, int64_t rank) {
  std::map<std::string, UnitSize> sizes = unit_sizes(specs, plan, rank);
  std::vector<SizedUnit> units;
  for (size_t i = 0; i < plan.units.size(); ++i) {
    const UnitPlan& unit = plan.units[i];
    if (!is_of_stage(plan, i, rank)) continue;
    units.push_back({unit, sizes[unit.name], i});
    if (!unit.is_cut()) continue;
    UnitPlan rows = rows_plan(unit);
    const UnitSize& size = sizes[rows.name];
    units.push_back({std::move(rows), size, i});
  }
  return units;
}

std::vector<int64_t> distinct_ranks(const arch::ModelConfig& config, const Plan& plan) {
  std::set<Span> spans;
  for (const UnitPlan& unit : plan.units) {
    if (unit.is_cut()) spans.insert(tensor_span(plan, unit));
  }
  std::map<int64_t, std::vector<int64_t>> alike;  // by degree
  for (const Span& span : spans) {
    if (!alike.contains(span.size)) alike[span.size] = first_alike(config, span.size);
  }
  std::set<std::vector<int64_t>> seen;
  std::vector<int64_t> ranks;
  // Without tensor groups all ranks of a stage are alike.
  const int64_t step = spans.empty() ? plan.stage_ranks() : 1;
  for (int64_t rank = 0; rank < plan.world; rank += step) {
    std::vector<int64_t> positions = {stage_of(plan, rank)};
    for (const Span& span : spans)
      positions.push_back(alike[span.size][static_cast<size_t>(position_in(span, rank))]);
    if (seen.insert(std::move(positions)).second) ranks.push_back(rank);
  }
  return ranks;
}

int64_t virtual_stage_of(const Plan& plan, size_t unit) {
  const auto behind = std::ranges::upper_bound(plan.first_unit, static_cast<int64_t>(unit));
  return behind - plan.first_unit.begin() - 1;
}

std::set<std::string> cuttable_units(const arch::ModelConfig& config) {
  std::set<std::string> names;
  for (const auto& spec : arch::parameters(config)) {
    if (spec.is_cut()) names.insert(spec.unit);
  }
  return names;
}

}  // namespace tessera::plan
