// SPDX-License-Identifier: Apache-2.0
// The page of an evaluation. Pure.
#pragma once

#include <string>

#include "tessera/monitor/evaluation_report.h"

namespace tessera::monitor {

/// HTML that needs nothing from outside, in the looks of a run's report.html.
std::string evaluation_page(const EvaluationReport& report);

}  // namespace tessera::monitor
