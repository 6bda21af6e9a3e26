// SPDX-License-Identifier: Apache-2.0
// What `tessera plan predict` and `tessera plan simulate` compute and print.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include "tessera/plan/memory.h"
#include "tessera/plan/traffic.h"
#include "tessera/planner/step_time.h"
#include "tessera/recipe/recipe.h"

namespace tessera::cli {

/// What this program and machine are, to be compared with the profile's provenance. Empty: not compared.
struct Here {
  std::string processor, build;
  std::vector<std::string> gpus = {};  // names
};
/// Names as `tessera plan profile` writes them; the processor's with its features.
Here here();

struct PredictionQuery {
  std::string recipe, profile;    // files
  std::vector<std::string> sets;  // KEY=VALUE for the recipe
  int64_t ranks = 1;
  int64_t ranks_per_host = 0;  // 0: as many as the profile was measured with
  bool force = false;          // accept a profile of another machine, build, dtype, threads
  bool record = false;         // for a trace
};

/// What predictions begin with.
struct PredictedRecipe {
  recipe::Recipe recipe;
  planner::Profile profile;
};

struct Prediction {
  planner::Profile profile;
  recipe::BatchSizes sizes;
  planner::StepQuestion question;
  planner::StepTime time = {};
  plan::StepTraffic traffic = {};
  std::vector<plan::Memory> memory = {};  // by stage
  double images_per_second = 0;           // over all ranks
};

/// "fp32"; "" where the recipe leaves the dtype open.
std::string dtype_name(recipe::Dtype dtype);

/// Reads recipe and profile. Errors: UserError of the files; a profile of another model; and, without
/// `force`, of another machine, build, compute dtype or number of threads. An imported profile (without
/// build) is compared by its dtype alone.
PredictedRecipe read_predicted(const PredictionQuery& query, const Here& here);
/// Do blocks keep outputs of norms and GELUs for backward? As the recipe says, or as it was measured.
bool keeps_activations(const PredictedRecipe& of);
/// What the training has of plan::CostInputs (eager/session.h), on the device of the profile.
plan::CostInputs inputs_of(const PredictedRecipe& of, int64_t micro_batches);
/// Errors: as planner::predict_step().
Prediction predict(const PredictedRecipe& of, const planner::StepQuestion& question,
                   const recipe::BatchSizes& sizes);
/// Reads recipe and profile and predicts a step of the recipe's layout. Errors: as read_predicted().
Prediction predict(const PredictionQuery& query, const Here& here);

/// The table for people: seconds by part of the slowest stage, images per second, bytes, memory per stage.
void print_prediction(const Prediction& prediction, std::ostream& out);
/// The same and more as one JSON object.
void print_prediction_json(const Prediction& prediction, std::ostream& out);
/// The passes of all stages over time.
void print_drawing(const Prediction& prediction, std::ostream& out);
/// Trace Event Format, for Perfetto: a process for each stage. Requires: PredictionQuery::record.
std::string trace_of(const Prediction& prediction);

}  // namespace tessera::cli
