// Which samples of a source cannot be read, and how many of them a run bears. Safe from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <string>

#include "tessera/base/error.h"
#include "tessera/data/loader.h"

namespace tessera::data {

class BrokenSamples {
 public:
  BrokenSamples(int64_t source_size, const LoaderOptions& options);

  bool known(int64_t sample) const;
  /// Warns and counts, each sample once. Throws UserError when samples must not be broken, when more than the
  /// limit's share of the source is (a single one is borne at any limit above 0), or all are.
  void add(int64_t sample, const UserError& reason);
  int64_t count() const { return count_; }

 private:
  const int64_t source_size_;
  const bool fail_;
  const double limit_;
  const std::function<void(const std::string&)> warn_;
  std::atomic<int64_t> count_ = 0;
  mutable std::mutex mutex_;
  std::set<int64_t> samples_;
};

}  // namespace tessera::data
