// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process: each runs the same body, and none may end the process by what it
// throws.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace tessera {

/// Runs body(0) to body(count - 1), each on its own thread, and waits for all. Errors: rethrows the exception
/// of the lowest index that failed; those of the others are dropped.
inline void run_on_threads(int64_t count, const std::function<void(int64_t)>& body) {
  std::vector<std::exception_ptr> failures(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        body(i);
      } catch (...) {
        failures[static_cast<size_t>(i)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace tessera
