// SPDX-License-Identifier: Apache-2.0
// Which of several dead ranks is to blame, and the line that says so. Private to this room.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "tessera/launch/process.h"

namespace tessera::launch {

using Clock = std::chrono::steady_clock;

/// Ranks that failed, in the order their ends were seen. A rank that lost a peer ends with a communication
/// error within milliseconds, often before the peer itself has ended: what came first is not always the
/// cause.
class FailureReport {
 public:
  void add(const RankProcess& rank, Clock::time_point now);
  bool empty() const { return dead_.empty(); }
  Clock::time_point first_death() const { return first_; }
  /// When the culprit can be named: a moment after the first death that is no mere communication error, or at
  /// `latest` if there is none. A wrong input that rank 0 finds as well may take it a little longer.
  Clock::time_point verdict_time(Clock::time_point latest) const;
  /// One that a signal killed, else one whose exit code is not 3 (of several with wrong input rank 0), else
  /// the first. Requires: not empty().
  const RankProcess& culprit() const;
  /// Has a rank failed by itself, or did all of them only lose another rank?
  bool has_cause() const { return first_cause_ != Clock::time_point::max(); }
  /// The first that ended because it lost another rank; null: none did.
  const RankProcess* first_that_lost_another() const;

 private:
  std::vector<const RankProcess*> dead_;
  Clock::time_point first_, first_cause_ = Clock::time_point::max();
};

/// "rank 1 of 3 (pid 123) does not answer the other ranks: it is stopped (SIGSTOP)", of a rank that still
/// runs after the others have ended because of it.
std::string silence_line(const RankProcess& rank, int64_t world);

/// "rank 1 of 4 noticed it: error: [mesh.group] ...": its last error, which is in its log alone. Empty where
/// the log has no error.
std::string noticed_line(const RankProcess& rank, int64_t world);

/// Rank 0 prints errors on the console: a line about its wrong input would say nothing new.
bool is_told_by_rank_0(const RankProcess& culprit);

/// "rank 1 of 2 (pid 123) ended with exit code 4; last lines of logs/rank-1.log: ..."; of kExitUser without
/// the file, which may not stay.
std::string failure_line(const RankProcess& rank, int64_t world);

}  // namespace tessera::launch
