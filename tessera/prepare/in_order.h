// SPDX-License-Identifier: Apache-2.0
// Work on many threads, results in order.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/base/thread_cores.h"
#include "tessera/data/start_threads.h"

namespace tessera::prepare {

/// Calls make(i) for each i in [begin, end) on `workers` threads (0: one for each core this process may use;
/// never more than there are values) and take(i, value) in order on the caller's:
/// what is taken does not depend on the number of workers. At most 4 values a worker wait. The first error
/// in order is thrown, of make where it would have been taken; then no thread is left.
/// Errors: also UserError where the system does not start as many threads.
template <typename Value>
class InOrder {
 public:
  using Make = std::function<Value(int64_t)>;
  using Take = std::function<void(int64_t, Value)>;

  static void run(int64_t begin, int64_t end, int workers, const Make& make, const Take& take) {
    if (workers <= 0) workers = std::max(1, static_cast<int>(cores_of_thread().size()));
    workers = static_cast<int>(std::min<int64_t>(workers, end - begin));
    if (workers <= 1) {
      for (int64_t i = begin; i < end; ++i) take(i, make(i));
      return;
    }
    InOrder state(begin, end, workers, make);
    for (int64_t i = begin; i < end; ++i) take(i, state.next(i));
  }

 private:
  struct Slot {
    std::optional<Value> value;
    std::exception_ptr error;
  };

  InOrder(int64_t begin, int64_t end, int workers, const Make& make)
      : make_(make), end_(end), started_(begin), taken_(begin), slots_(static_cast<size_t>(4 * workers)) {
    data::start_threads(
        static_cast<size_t>(workers), [this] { work(); }, [this] { stop(); }, threads_);
  }

  ~InOrder() {
    stop();
    for (auto& thread : threads_) thread.join();
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      end_ = started_;
    }
    room_.notify_all();
  }

  Slot& slot(int64_t i) { return slots_[static_cast<size_t>(i) % slots_.size()]; }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      room_.wait(lock,
                 [&] { return started_ >= end_ || started_ - taken_ < static_cast<int64_t>(slots_.size()); });
      if (started_ >= end_) return;
      const int64_t i = started_++;
      lock.unlock();
      Slot made;
      try {
        made.value.emplace(make_(i));
      } catch (...) {
        made.error = std::current_exception();
      }
      lock.lock();
      slot(i) = std::move(made);
      ready_.notify_one();
    }
  }

  Value next(int64_t i) {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [&] { return slot(i).value || slot(i).error; });
    Slot made = std::exchange(slot(i), {});
    ++taken_;
    lock.unlock();
    room_.notify_one();
    if (made.error) std::rethrow_exception(made.error);
    return *std::move(made.value);
  }

  const Make& make_;
  std::mutex mutex_;
  std::condition_variable room_, ready_;
  int64_t end_, started_, taken_;
  std::vector<Slot> slots_;
  std::vector<std::thread> threads_;
};

}  // namespace tessera::prepare
