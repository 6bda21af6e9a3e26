// SPDX-License-Identifier: Apache-2.0
// `tessera train --plan search`: the plan of a run, searched once and kept in its folder.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tessera/cli/plan_search.h"

namespace tessera::cli {

struct PinnedPlan {
  std::vector<std::string> sets;  // KEY=VALUE of the recipe that trains it
  double seconds = 0;             // of a step, predicted
};

/// Keeps in `folder` profile.json, if the request names none, searched_plan.json and plan_search.json.
/// `resumes`: a plan that is there for as many ranks is used again, unless its file was changed since.
/// Errors: as search_plan(); the exit code of a measurement that failed, as a UserError. Starts a process:
/// call it while this one has one thread.
PinnedPlan pinned_plan(SearchRequest request, const std::filesystem::path& folder, bool resumes);

}  // namespace tessera::cli
