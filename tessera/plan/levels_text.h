// SPDX-License-Identifier: Apache-2.0
// The levels of a plan for people. Pure; safe from any thread.
#pragma once

#include <string>

#include "tessera/plan/plan.h"

namespace tessera::plan {

/// "zero3, 14 units"; "zero3 over 2 of 8 ranks, 14 units"; "zero3 4 units, replicate 10 units; 6 with
/// recompute"; "zero3 2 units, zero3 with tensor 2 12 units".
std::string levels_text(const Plan& plan);

}  // namespace tessera::plan
