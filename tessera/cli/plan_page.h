// SPDX-License-Identifier: Apache-2.0
// The page that `tessera plan explain` writes. Pure.
#pragma once

#include <string>

#include "tessera/cli/plan_explanation.h"
#include "tessera/monitor/step_timeline.h"

namespace tessera::cli {

/// HTML that needs nothing from outside, in the looks of a run's report.html.
std::string plan_page(const ExplainedPlan& explained);

/// A predicted step as if it had been traced: all ranks of a stage do the same; messages are given for the
/// first of them alone. Requires: the prediction was recorded.
monitor::StepTimeline timeline_of(const Prediction& prediction);

}  // namespace tessera::cli
