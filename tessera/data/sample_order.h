// SPDX-License-Identifier: Apache-2.0
// Which sample is the i-th of step s: a pure function of (seed, s, i), never of rank, worker or what came
// before, so a run may start at any step. Safe from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tessera/data/loader.h"
#include "tessera/data/source.h"

namespace tessera::data {

/// One appearance of a sample.
struct Draw {
  int64_t sample = 0;      // index in the source
  int64_t copy = 0;        // 0 .. repeats - 1
  int64_t appearance = 0;  // number of this appearance among all of the sample: its augmentation's key
};

class SampleOrder {
 public:
  /// Errors: UserError on values out of range, less than one batch (unless the remainder is kept or carried),
  /// a part of a mix that is empty or too rare.
  SampleOrder(const Source& source, uint64_t seed, int64_t batch, OrderOptions options,
              const StreamStart& start = {});

  /// Samples of a step: the batch, but for the last step of an epoch whose remainder is kept, or amid which
  /// `start` began a new batch.
  int64_t step_size(int64_t step) const;
  /// The epoch of a step's first sample.
  int64_t epoch(int64_t step) const { return position(step).epoch; }
  /// Where a step begins. Requires: step >= start.step, as everywhere.
  StreamPosition position(int64_t step) const { return place(step, 0); }
  /// Requires: 0 <= i < step_size(step).
  Draw at(int64_t step, int64_t i) const;

 private:
  /// The shards of one part in the order of one pass.
  struct ShardOrder {
    std::vector<int64_t> shards;  // permuted
    std::vector<int64_t> starts;  // of each in the pass, and the end
  };
  struct SourceRange {
    int64_t first = 0, size = 0;  // samples in the source
    int64_t slot = 0, slots = 0;  // its slots of a block of the mix
    std::vector<int64_t> shards;  // first sample of each, and the end
  };

  StreamPosition place(int64_t step, int64_t i) const;
  void add_part(int64_t first, int64_t size, const std::vector<int64_t>& shard_starts);
  void share_slots();
  Draw of_mix(int64_t place) const;
  int64_t in_pass(size_t part, int64_t pass, int64_t index) const;
  int64_t in_shards(size_t part, int64_t pass, int64_t index) const;
  std::shared_ptr<const ShardOrder> shard_order(size_t part, int64_t pass) const;

  const uint64_t key_;
  const int64_t samples_, batch_;
  const int64_t steps_;  // of an epoch; not used where the remainder is carried over
  OrderOptions options_;
  const StreamStart start_;
  const int64_t first_steps_;  // of the epoch that start_ lies in, from there on
  std::vector<SourceRange> parts_;
  mutable std::mutex mutex_;
  mutable std::map<std::pair<size_t, int64_t>, std::shared_ptr<const ShardOrder>> shard_orders_;
};

}  // namespace tessera::data
