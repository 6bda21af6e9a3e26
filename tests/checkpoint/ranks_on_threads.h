// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process, with an all_gather in memory.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::checkpoint::testing {

/// Meeting point of `world` threads. A rank that waits a minute for the others throws: a test never hangs.
class Meeting {
 public:
  explicit Meeting(int64_t world) : texts_(static_cast<size_t>(world)) {}

  std::vector<std::string> all_gather(int64_t rank, const std::string& text) {
    std::unique_lock lock(mutex_);
    texts_[static_cast<size_t>(rank)] = text;
    const int64_t round = round_;
    if (++arrived_ == texts_.size()) {
      result_ = texts_;
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    } else if (!changed_.wait_for(lock, std::chrono::minutes(1), [&] { return round_ != round; })) {
      throw std::runtime_error("the other ranks did not come");
    }
    return result_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> texts_, result_;
  size_t arrived_ = 0;
  int64_t round_ = 0;
};

/// Runs `work` as every rank; returns each rank's error text (empty: none).
inline std::vector<std::string> run_ranks(int64_t world, const std::function<void(const Ranks&)>& work) {
  Meeting meeting(world);
  std::vector<std::string> errors(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        work({.rank = rank, .world = world, .all_gather = [&meeting, rank](const std::string& text) {
                return meeting.all_gather(rank, text);
              }});
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

}  // namespace tessera::checkpoint::testing
