// SPDX-License-Identifier: Apache-2.0
// Pipelines as text. Pure; safe from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/plan/plan.h"
#include "tessera/plan/schedule.h"

namespace tessera::plan {

/// The units of a stage: "stem to blocks.2, and blocks.6 to blocks.8".
std::string stage_units_text(const Plan& plan, int64_t stage);
/// "ranks 0-1: stem to blocks.2".
std::string stage_text(const Plan& plan, int64_t stage);

/// A schedule over time, one line a stage, in about `columns` characters: a digit for the forward pass of the
/// micro-batch that ends with it, a letter for its backward pass (a: 0), a dot while the stage has nothing to
/// do.
std::vector<std::string> draw(const Timing& timing, int64_t columns);

}  // namespace tessera::plan
