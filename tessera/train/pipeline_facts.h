// SPDX-License-Identifier: Apache-2.0
// What a run says of its pipeline before it starts: stages, schedule, bubble, memory.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tessera/plan/schedule.h"
#include "tessera/train/prepared.h"

namespace tessera::train {

/// Names and values for people; none without a pipeline. Requires: job, ranks, device, plan, sizes, choices.
std::vector<std::pair<std::string, std::string>> pipeline_facts(const Prepared& p);

/// A schedule over time, one line a stage, in about `columns` characters: a digit for the forward pass of the
/// micro-batch that ends with it, a letter for its backward pass (a: 0), a dot while the stage has nothing to
/// do.
std::vector<std::string> draw(const plan::Timing& timing, int64_t columns);

}  // namespace tessera::train
