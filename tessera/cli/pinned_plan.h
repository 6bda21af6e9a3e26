// SPDX-License-Identifier: Apache-2.0
// `tessera train --plan search`: the plan of a run, searched once and kept in its folder.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tessera/cli/plan_search.h"
#include "tessera/recipe/recipe.h"

namespace tessera::cli {

struct PinnedPlan {
  std::vector<std::string> sets;  // KEY=VALUE of the recipe that trains it
  double seconds = 0;             // of a step, predicted
};

/// The measurement was asked to stop by a signal: no plan is searched, nothing is trained.
struct StoppedMeasuring {
  int exit_code = 0;
};

/// Refuses, before anything is measured, what no measurement can change: --memory and, unless the run
/// resumes, the batch of the recipe. Errors: UserError.
void check_search(const SearchRequest& request, const recipe::Recipe& recipe, bool resumes);

/// Keeps in `folder` profile.json, if the request names none, searched_plan.json and plan_search.json.
/// `resumes`: a plan that is there for as many ranks is used again, unless its file was changed since.
/// A profile that was measured stays in `folder` also where the search then fails, which a line on stderr
/// says. Errors: as search_plan(); the exit code of a measurement that failed, as a UserError;
/// StoppedMeasuring. Starts a process: call it while this one has one thread.
PinnedPlan pinned_plan(SearchRequest request, const std::filesystem::path& folder, bool resumes);

}  // namespace tessera::cli
