// SPDX-License-Identifier: Apache-2.0
// Names of the mesh's axes and groups for the layout that a recipe asks for (recipe/make_plan.h).
#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "tessera/eager/session.h"
#include "tessera/plan/spans.h"
#include "tessera/recipe/make_plan.h"

namespace tessera::eager {
namespace {

/// UnitPlan::shard of the units that are split, where it is the same for all; else 0.
int64_t common_shard(const plan::Plan& plan) {
  std::set<int64_t> found;
  for (const plan::UnitPlan& unit : plan.units) {
    if (unit.level != plan::Level::kReplicate) found.insert(unit.shard);
  }
  return found.size() == 1 ? *found.begin() : 0;
}

/// The groups of the units that are cut, where these are the same for all; else none.
std::optional<std::array<plan::Span, 3>> common_groups(const plan::Plan& plan) {
  std::set<std::array<plan::Span, 3>> found;
  for (const plan::UnitPlan& unit : plan.units) {
    if (unit.is_cut())
      found.insert({tensor_span(plan, unit), replicate_span(plan, unit), shard_span(plan, unit)});
  }
  return found.size() == 1 ? std::optional(*found.begin()) : std::nullopt;
}

/// Of the ranks of a stage.
std::vector<mesh::Axis> stage_axes(const recipe::Recipe& recipe, const plan::Plan& plan) {
  const int64_t ranks = plan.stage_ranks();
  const bool cuts = std::ranges::any_of(plan.units, &plan::UnitPlan::is_cut);
  if (!cuts) {
    const int64_t shards = recipe.parallel.plan.empty() ? recipe.shard.ranks : common_shard(plan);
    if (shards == 0 || shards == ranks) return {{"shard", ranks}};
    return {{"dp", ranks / shards}, {"shard", shards}};
  }
  const auto groups = common_groups(plan);
  // No names fit groups that differ from unit to unit. The residual stream is data parallel in any case.
  if (!groups) return {{"dp", ranks}};
  const auto& [tensor, replicate, shard] = *groups;
  const mesh::Axis cut{"tensor", tensor.size};
  std::vector<mesh::Axis> axes = {{"dp", replicate.size}, {"shard", shard.size}};
  axes.insert(tensor.stride == 1 ? axes.end() : axes.begin(), cut);
  return axes;
}

}  // namespace

std::vector<mesh::Axis> mesh_axes(const recipe::Recipe& recipe, const plan::Plan& plan) {
  std::vector<mesh::Axis> axes = stage_axes(recipe, plan);
  if (plan.stages > 1) axes.insert(axes.begin(), {"pipeline", plan.stages});
  return axes;
}

std::vector<mesh::Span> mesh_spans(const recipe::Recipe& recipe, const plan::Plan& plan) {
  std::vector<mesh::Span> spans = plan::spans_of(plan);
  if (recipe.distill.teacher.empty()) return spans;
  recipe::Recipe teacher = recipe;  // with the student's model: under these keys any model has these groups
  teacher.parallel = recipe::ParallelRecipe();
  teacher.shard.units = "";
  const std::vector<mesh::Span> more = plan::spans_of(recipe::plan_of_keys(teacher, plan.world));
  spans.insert(spans.end(), more.begin(), more.end());
  return spans;
}

}  // namespace tessera::eager
