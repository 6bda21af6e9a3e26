// SPDX-License-Identifier: Apache-2.0
// Which samples of a source cannot be read, and how many of them a run bears. Safe from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/data/loader.h"

namespace tessera::data {

/// Throws UserError when `count` broken samples are more than the limit's share of a source (a single one is
/// borne at any limit above 0), or all.
void check_broken(int64_t count, int64_t source_size, double limit, const std::string& last_reason);

class BrokenSamples {
 public:
  BrokenSamples(int64_t source_size, const LoaderOptions& options);

  bool known(int64_t sample) const;
  /// Warns and counts, each sample once. Throws UserError when samples must not be broken, and, unless ranks
  /// decide together, when they are too many.
  void add(int64_t sample, const UserError& reason);
  /// Those this rank knows of are enough to end the run, whatever the other ranks found.
  bool too_many() const;
  /// Those this rank knows of.
  int64_t count() const { return count_; }
  /// Those all ranks know of: of the merged reports.
  int64_t agreed() const;

  /// Found by this rank since its last report.
  int64_t unreported() const;
  /// They and the last one's reason, for merge() on all ranks.
  std::string report();
  /// Adds what all ranks reported. Errors: as check_broken, the same on all ranks when all merged the same
  /// reports all along.
  void merge(const std::vector<std::string>& reports);

 private:
  const int64_t source_size_;
  const bool fail_, together_;
  const double limit_;
  const std::function<void(const std::string&)> warn_;
  std::atomic<int64_t> count_ = 0;
  mutable std::mutex mutex_;
  std::set<int64_t> samples_, agreed_;
  std::vector<int64_t> unreported_;
  std::string last_reason_;
};

}  // namespace tessera::data
