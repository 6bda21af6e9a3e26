// SPDX-License-Identifier: Apache-2.0
// Why a plan was chosen: the plans that it is compared with and what each loses to it, how the choice depends
// on links and memory, and how many ranks are worth renting. Pure but for the clocks of the searches; safe
// from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/planner/search.h"

namespace tessera::planner {

/// Alternative::name of the fastest plan that was found besides the winner.
inline constexpr const char* kRunnerUp = "runner-up";

/// A plan beside the winner.
struct Alternative {
  std::string name;  // "runner-up", "ZeRO-3", "pipeline"
  /// The fastest of its kind that fits; where none fits, the one that needs the least memory.
  std::optional<FoundPlan> plan;
  double missing = 0;  // bytes of a rank that it needs beyond those there are
  std::string reason;  // why it loses, one sentence without a full stop
  bool fits() const { return plan && missing == 0; }
};

/// What happens if the machine is another one.
struct Variation {
  std::string change;                       // "links half as fast"
  std::optional<double> kept_seconds = {};  // of a step of the winner as it is; nothing: it does not fit
  std::optional<FoundPlan> best =
      {};                 // the best plan now, at least as fast as the winner; nothing: none fits
  bool is_other = false;  // `best` is another plan than the winner
};

/// The best plan for a number of ranks. All blocks have the same layout.
struct RankCount {
  int64_t ranks = 1;
  std::optional<FoundPlan> best = {};
  double images_per_second = 0, images_per_rank_hour = 0;  // 0 without a plan
  double efficiency = 0;    // images per rank-hour as a share of Explanation::base_ranks'
  std::string reason = {};  // why there is no plan
};

struct Explanation {
  std::vector<Alternative> alternatives;  // the runner-up if there is one, then one of each kind
  std::vector<Variation> variations;
  std::vector<RankCount> counts;  // by rising ranks
  /// Ranks that the efficiency compares with: one host, or if that has no plan the fewest ranks with one.
  int64_t base_ranks = 0;
};

/// Explains the first plan of `found`, which answers `question`. Links change their bandwidth and keep their
/// latency. Kinds of plans and numbers of ranks are searched with the same layout for all blocks, at the
/// winner's batch. Each search has the question's time limit; as many run at once as there are cores. Errors:
/// as search(). Requires: `found` has a plan.
Explanation explain(const Profile& profile, const SearchQuestion& question, const SearchResult& found);

/// "12.3 % slower: waits 120 ms for gathers of parameters (the winner: 10.0 ms)". Compares the stages that
/// stand still the least, for as many images as the winner's step has.
std::string why_slower(const FoundPlan& plan, const FoundPlan& winner);
/// "needs 96.00 GiB of a rank, 16.00 GiB more than there is; most of it for weights and optimizer states".
std::string why_too_large(const FoundPlan& plan, double memory);

/// Links with `factor` times the bandwidth and the same latency; measured samples as well. What units wait
/// for their peers (PeerTimes) changes by what their exchanges over these links change.
Profile with_bandwidth(Profile profile, double factor);

/// 1, 2, 4, ... below `ranks`, the ranks of a host if they are fewer, and `ranks`.
std::vector<int64_t> rank_counts(int64_t ranks, int64_t ranks_of_host);

/// The most ranks that give at least `share` of the most images per rank-hour; 0 without a plan.
int64_t most_ranks_worth(const std::vector<RankCount>& counts, double share);

/// "1.23 s", "45.6 ms", "38.0 µs"; "0 s".
std::string seconds_text(double seconds);

}  // namespace tessera::planner
