// SPDX-License-Identifier: Apache-2.0
// A rank that is busy for long without a collective tells the ranks that wait for it. Private to this room.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <utility>

#include "tessera/mesh/store.h"

namespace tessera::mesh {

/// A count in the store that every busy rank raises. Any thread.
class Progress {
 public:
  /// Those that wait do so for `timeout` without progress.
  Progress(StorePointer store, std::chrono::milliseconds timeout)
      : store_(std::move(store)),
        interval_(std::clamp(timeout / 4, std::chrono::milliseconds(50), std::chrono::milliseconds(5000))) {}

  /// This rank advances in what it does. Tells the store so four times in the timeout, and once in 5 s at
  /// most.
  void note();
  /// Has a rank advanced since the last call? False where the store does not answer.
  bool has_been_made();

 private:
  StorePointer store_;
  std::chrono::milliseconds interval_;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point told_{};
  int64_t seen_ = 0;
};

}  // namespace tessera::mesh
