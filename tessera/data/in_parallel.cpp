// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/in_parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera::data {

void in_parallel(size_t count, size_t threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  size_t error_at = count;
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        next = count;
        const std::lock_guard lock(mutex);
        if (i < error_at) {
          error_at = i;
          error = std::current_exception();
        }
      }
    }
  };
  std::vector<std::thread> others;
  const size_t wanted = std::min(threads, count);
  others.reserve(wanted);
  try {
    for (size_t i = 1; i < wanted; ++i) others.emplace_back(run);
  } catch (const std::exception&) {  // a limit of the system: those that started do all of it
  }
  run();
  for (auto& thread : others) thread.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace tessera::data
