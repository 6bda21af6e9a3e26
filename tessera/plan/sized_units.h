// SPDX-License-Identifier: Apache-2.0
// The units of a plan with what a rank holds of them. Private to this room.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "tessera/plan/plan.h"

namespace tessera::plan {

/// Values that a rank's layers have of a unit: what its data-parallel group splits.
struct UnitSize {
  double parameters = 0;    // trained
  double largest = 0;       // of them, in one tensor
  double buffers = 0;       // computed once, in fp32 and in the compute dtype
  double buffer_bytes = 0;  // of what training changes besides: whole on every rank
};

/// What is gathered and reduced at once: a unit of the plan, or where tensor parallelism cuts it two of them,
/// of its cut parameters and of the rest (rows_plan).
struct SizedUnit {
  UnitPlan plan;
  UnitSize size;
  size_t index = 0;  // in Plan::units
};

/// What a model lists, so that it is listed once for several ranks.
struct ModelSpecs {
  explicit ModelSpecs(const arch::ModelConfig& config);
  std::vector<arch::ParameterSpec> parameters;
  std::vector<arch::BufferSpec> buffers;
};

/// Of `rank`, those of its stage, in the order of the plan. Requires: the plan's units are the model's.
std::vector<SizedUnit> sized_units(const ModelSpecs& specs, const Plan& plan, int64_t rank);
std::vector<SizedUnit> sized_units(const arch::ModelConfig& config, const Plan& plan, int64_t rank);

/// Ranks of which no two are of the same stage and hold equal parts of every unit, in rising order: one for
/// each combination of parts. All other ranks hold as much as one of them.
std::vector<int64_t> distinct_ranks(const arch::ModelConfig& config, const Plan& plan);

/// The virtual stage that a unit is in, by its index in Plan::units.
int64_t virtual_stage_of(const Plan& plan, size_t unit);

/// Names of the model's units that tensor parallelism can cut.
std::set<std::string> cuttable_units(const arch::ModelConfig& config);

}  // namespace tessera::plan
