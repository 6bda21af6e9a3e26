// SPDX-License-Identifier: Apache-2.0
// What `tessera plan explain` finds out and prints; plan_page.h makes the page of it.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "tessera/cli/plan_search.h"
#include "tessera/planner/explanation.h"

namespace tessera::cli {

struct ExplainedPlan {
  SearchedPlan searched;
  planner::Explanation explanation;
  Prediction winner;                       // with StepTime::events
  std::vector<std::string> commands = {};  // that save the winner's plan and train it
};

/// Without commands. Errors: as search_plan().
ExplainedPlan explain_plan(const SearchRequest& request, const Here& here);

/// Bytes that a rank sends in a step.
double sent_bytes(const ExplainedPlan& explained, const planner::FoundPlan& plan);
/// The kind of plan, other than the winner's, that comes next; nullptr: none fits.
const planner::Alternative* next_kind(const ExplainedPlan& explained);
/// "the same plan" or the layout of the better one.
std::string change_text(const planner::Variation& variation);
/// Sentences on what numbers of ranks are worth renting.
std::string renting_text(const planner::Explanation& explanation);

/// The winner, what the other plans lose, variations, numbers of ranks.
void print_explanation(const ExplainedPlan& explained, std::ostream& out);
/// The same as one JSON object.
void print_explanation_json(const ExplainedPlan& explained, std::ostream& out);

}  // namespace tessera::cli
