// SPDX-License-Identifier: Apache-2.0
// What `tessera plan search` and `tessera train --plan search` ask of the planner, and its answer for people.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "tessera/cli/plan_prediction.h"
#include "tessera/planner/search.h"

namespace tessera::cli {

struct SearchRequest {
  PredictionQuery query;           // ranks: of the training
  std::string memory;              // "24GiB", of a rank; empty: what the profile's device or this machine has
  std::vector<std::string> batch;  // of a step: empty: the recipe's; "any"; or numbers
  double seconds = 60;             // of the search
  bool layer_by_layer = true;
};

struct SearchedPlan {
  PredictedRecipe of;
  planner::SearchQuestion question;
  planner::SearchResult result;
  std::vector<std::string> notes;  // what the search has kept of the recipe
};

/// Bytes: a number with "", "B", "KiB" to "TiB" or "KB" to "TB". Errors: UserError in the name of `where`.
double bytes_from_text(const std::string& text, const std::string& where);

/// Reads recipe and profile and searches. Errors: as read_predicted() and planner::search(); sizes that are
/// no numbers; and where nothing fits, which names the smallest memory that would do and its plan.
SearchedPlan search_plan(const SearchRequest& request, const Here& here);

/// "stem zero3; blocks.0-11 zero3 recompute; head zero3".
std::string layout_text(const plan::Plan& plan);
/// "zero3 tensor2 recompute".
std::string unit_text(const plan::UnitPlan& unit);
/// "1 stage, 2 x 8 images", "2 stages, 1F1B, 4 x 4 images".
std::string frame_text(const planner::StepQuestion& question);

/// KEY=VALUE of a recipe that trains the plan, saved at `path`.
std::vector<std::string> settings_of(const SearchedPlan& searched, const planner::FoundPlan& plan,
                                     const std::string& path);
/// Are all ranks on one host, where --procs starts them? Several hosts need a launcher, whose command is not
/// known here.
bool is_one_host(const SearchedPlan& searched);
/// `tessera train ...` with these settings and those of the request.
std::string training_command(const SearchRequest& request, const SearchedPlan& searched,
                             const planner::FoundPlan& plan, const std::string& path);
/// "no plan of the space is faster", or by how much one could be.
std::string bound_text(const planner::SearchResult& result);
/// "13 groups of plans bounded, 9 plans simulated in 0.10 s: " and bound_text().
std::string search_text(const planner::SearchResult& result);
/// The prediction of a found plan.
Prediction prediction_of(const SearchedPlan& searched, const planner::FoundPlan& plan);

/// Table of the best plans, the winner by part, what was searched. `most`: rows.
void print_search(const SearchedPlan& searched, size_t most, std::ostream& out);
/// The same as one JSON object.
void print_search_json(const SearchedPlan& searched, std::ostream& out);

}  // namespace tessera::cli
