// SPDX-License-Identifier: Apache-2.0
// A traced step as a picture: the mesh of ranks, and below it what every rank did over time. Pure.
#pragma once

#include <string>

#include "tessera/monitor/step_timeline.h"
#include "tessera/plan/plan.h"

namespace tessera::monitor {

/// An SVG document without references to other files. `title`: name of the recipe. Above 32 ranks the
/// schedule has the first rank of each stage alone, and says so. Errors: UserError when the step is not one
/// of the plan: the numbers of ranks or of passes differ.
std::string draw_step(const std::string& title, const plan::Plan& plan, const StepTimeline& timeline);

/// The same of a predicted step, for a page: without title, and with the first rank of each stage alone. Its
/// styles begin with ".step". Errors: as draw_step.
std::string draw_prediction(const plan::Plan& plan, const StepTimeline& timeline);

}  // namespace tessera::monitor
