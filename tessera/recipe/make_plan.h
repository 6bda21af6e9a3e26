// SPDX-License-Identifier: Apache-2.0
// The layout that a recipe asks for. Pure but for plan files that are read; safe from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/plan/plan.h"
#include "tessera/recipe/recipe.h"

namespace tessera::recipe {

/// The plan of a run on `world` ranks: that of parallel.plan, or of the keys shard.* and parallel.*. Errors:
/// UserError that names the file or key: values that contradict each other, or that training does not
/// support.
plan::Plan make_plan(const Recipe& recipe, int64_t world);
/// The plan of the keys alone. Errors: as make_plan().
plan::Plan plan_of_keys(const Recipe& recipe, int64_t world);
/// Does plan_of_keys() choose the number of micro-batches of a pipeline, which no key decides?
bool chooses_micro_batches(const Recipe& recipe);
/// Batch sizes of a run with this plan: per rank of a stage, and its micro-batches. Errors: UserError as
/// resolve_batch(), where train.accumulation contradicts the plan, and where a rank without images would have
/// no statistics of its BatchNorm.
BatchSizes batch_sizes(const Recipe& recipe, const plan::Plan& plan);
/// Keys that were set and do not change the plan, as lines for the user: those beside a plan file, and those
/// of tensor parallelism where nothing is cut.
std::vector<std::string> layout_warnings(const Recipe& recipe, const plan::Plan& plan);

}  // namespace tessera::recipe
