// SPDX-License-Identifier: Apache-2.0
// Searches for the plan whose predicted step is shortest among those that fit into the memory of each rank.
// docs/planner.md describes the search. Pure but for the clock of a time limit; safe from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/plan/memory.h"
#include "tessera/planner/step_time.h"

namespace tessera::planner {

/// Decides for the blocks of a plan: their stages (p), and what each of them has.
using Allowed = std::function<bool(int64_t stages, const plan::UnitPlan& block)>;

struct SearchQuestion {
  int64_t ranks = 1;
  int64_t ranks_of_host = 0;     // as StepQuestion
  double memory = 0;             // bytes of a rank, above the idle program (plan/memory.h)
  std::vector<int64_t> batches;  // images of a step over all ranks; of several, the one with most images/s
  plan::CostInputs inputs = {};  // accumulates follows from each plan
  int64_t pieces = 1;            // as StepQuestion
  bool shared_memory = true;     // as StepQuestion
  int64_t micro_batches = 0;     // of a step; 0: any
  int64_t images_of_rank = 0;    // in a micro-batch, of the rank with most images; 0: any
  bool equal_ranks = false;      // all ranks have as many images, in each micro-batch
  bool layer_by_layer = true;    // false: all blocks have the same layout
  Allowed allowed = nullptr;     // nullptr: every block
  size_t at_least = 4;           // plans of the answer, if so many with one layout for all blocks fit
  double seconds = 60;           // of the search; then it ends with what it has found
  /// Plans with one number of stages, micro-batches and order of passes are all compared if they are at most
  /// so many: each unit with each choice. Above it the space is smaller: SearchResult::restrictions says how.
  double all_plans = 50'000;
};

/// A plan with its predicted step.
struct FoundPlan {
  StepQuestion question;
  StepTime time;
  std::vector<plan::Memory> memory;  // by stage
  int64_t batch = 0;                 // images of a step over all ranks
  double seconds_per_image() const { return time.seconds / static_cast<double>(batch); }
  double most_memory() const;  // bytes of a rank
};

/// Do two plans differ at most in prefetch and in the layout of stem and head?
bool has_same_blocks(const FoundPlan& one, const FoundPlan& other);

struct SearchResult {
  /// By rising time of an image; of equal times the one with less memory first. Of plans that differ in
  /// their prefetch alone the first. At most kPlansKept. Empty: nothing fits.
  std::vector<FoundPlan> best;
  /// Seconds of an image that no plan of the space can be below. At most the best plan's.
  double lower_bound = 0;
  /// Of what was looked at, the plan that needs the least memory: where nothing fits and there was time, the
  /// smallest budget.
  std::optional<FoundPlan> smallest;
  int64_t simulated = 0;  // plans
  int64_t bounded = 0;    // groups of plans that a bound excluded or ranked
  bool timed_out = false;
  double seconds = 0;
  std::vector<std::string> restrictions;  // of the space: sentences
  /// (best - lower_bound) / best; 0: no plan of the space is better.
  double gap() const;
};

inline constexpr size_t kPlansKept = 16;

/// A batch need not be a multiple of the ranks: times and memory are those of the rank with most images.
/// Errors: UserError where the profile lacks what every plan needs, and where no number of stages and
/// micro-batches agrees with ranks, batch and the numbers that the question gives. Requires: batches of at
/// least 1 image.
SearchResult search(const Profile& profile, const SearchQuestion& question);

}  // namespace tessera::planner
