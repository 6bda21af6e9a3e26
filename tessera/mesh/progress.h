// SPDX-License-Identifier: Apache-2.0
// A rank that is busy for long without a collective tells the ranks that wait for it. Private to this room.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "tessera/mesh/store.h"

namespace tessera::mesh {

/// A count in the store that every busy rank raises. Any thread.
class Progress {
 public:
  /// Those that wait do so for `timeout` without progress.
  Progress(const StorePointer& store, std::chrono::milliseconds timeout)
      : store_(store->within("progress")),
        interval_(std::clamp(timeout / 4, std::chrono::milliseconds(50), std::chrono::milliseconds(5000))) {
    store_->set_limit(std::chrono::milliseconds(3000));
  }

  /// This rank advances in what it does. Tells the store so four times in the timeout, and once in 5 s at
  /// most.
  void note();
  /// How often the other ranks have said so; -1 where the store does not answer within 3 s.
  int64_t of_others();

 private:
  StorePointer store_;
  std::chrono::milliseconds interval_;
  std::atomic<std::chrono::steady_clock::rep> told_ = 0;
  std::atomic<int64_t> own_ = 0;
};

}  // namespace tessera::mesh
