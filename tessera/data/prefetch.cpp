// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/prefetch.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <utility>

#include "tessera/base/clock.h"
#include "tessera/base/thread_cores.h"
#include "tessera/data/start_threads.h"

namespace tessera::data {
namespace {

using Steady = std::chrono::steady_clock;

constexpr auto kBetweenQuestions = std::chrono::milliseconds(100);  // whether to give up

}  // namespace

Prefetcher::Prefetcher(const BatchMaker& maker, PrefetchOptions options)
    : maker_(maker),
      options_(std::move(options)),
      slots_(static_cast<size_t>(options_.ahead)),
      next_(options_.first),
      begun_(options_.first),
      end_(std::numeric_limits<int64_t>::max()) {
  running_ = options_.workers;
  const auto stop = [this] {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    work_.notify_all();
  };
  start_threads(
      static_cast<size_t>(options_.workers), [this] { work(); }, stop, threads_);
}

Prefetcher::~Prefetcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  for (auto& thread : threads_) thread.join();
}

bool Prefetcher::next(Batch* batch) {
  const auto start = Steady::now();
  if (options_.workers == 0) {
    const bool made = make_here(batch);
    const std::lock_guard lock(mutex_);
    wait_seconds_ += seconds_since(start);
    return made;
  }
  std::unique_lock lock(mutex_);
  Slot& slot = this->slot(next_);
  const bool came = wait_for(slot, lock);
  wait_seconds_ += seconds_since(start);
  if (!came) {
    *batch = Batch();
    batch->given_up = true;
    return true;
  }
  if (next_ >= end_) return false;
  if (slot.error) std::rethrow_exception(slot.error);
  *batch = std::move(slot.batch);
  slot = Slot();
  ++next_;
  lock.unlock();
  work_.notify_all();
  return true;
}

bool Prefetcher::close(double seconds) {
  std::unique_lock lock(mutex_);
  stop_ = true;
  work_.notify_all();
  return ended_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return running_ == 0; });
}

bool Prefetcher::wait_for(const Slot& slot, std::unique_lock<std::mutex>& lock) {
  const auto ready = [&] { return next_ >= end_ || slot.ready(); };
  if (!options_.give_up) {
    ready_.wait(lock, ready);
    return true;
  }
  std::optional<Steady::time_point> since;
  while (!ready_.wait_for(lock, kBetweenQuestions, ready)) {
    if (!options_.give_up()) continue;
    if (!since) since = Steady::now();
    if (seconds_since(*since) >= options_.patience) return false;
  }
  return true;
}

double Prefetcher::take_wait_seconds() {
  const std::lock_guard lock(mutex_);
  return std::exchange(wait_seconds_, 0.0);
}

void Prefetcher::give_back(Batch batch) {
  const std::lock_guard lock(mutex_);
  if (static_cast<int64_t>(spare_.size()) < options_.ahead) spare_.push_back(std::move(batch));
}

Batch Prefetcher::take_spare() {
  const std::lock_guard lock(mutex_);
  if (spare_.empty()) return {};
  Batch batch = std::move(spare_.back());
  spare_.pop_back();
  return batch;
}

bool Prefetcher::make_here(Batch* batch) {
  Batch made = take_spare();
  if (!maker_.start(next_, &made)) return false;
  maker_.fill(next_, {0, made.size}, stop_, &made);
  *batch = std::move(made);
  ++next_;
  return true;
}

void Prefetcher::work() {
  keep_thread_on(options_.cores);  // where they went away meanwhile it runs anywhere, which is only slower
  std::unique_lock lock(mutex_);
  while (!stop_) {
    int64_t index = next_;
    while (index < begun_ && slot(index).claimed == slot(index).size) ++index;
    if (index < begun_) {
      make_part(slot(index), index, lock);
    } else if (!beginning_ && begun_ < std::min(next_ + options_.ahead, end_)) {
      begin_batch(lock);
    } else {
      work_.wait(lock);
    }
  }
  --running_;
  ended_.notify_all();
}

// Outside the lock: giving a large batch its memory takes milliseconds.
void Prefetcher::begin_batch(std::unique_lock<std::mutex>& lock) {
  const int64_t index = begun_;
  beginning_ = true;
  lock.unlock();
  Batch batch = take_spare();
  std::exception_ptr error;
  bool exists = true;
  try {
    exists = maker_.start(index, &batch);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  beginning_ = false;
  if (exists) {
    Slot& slot = this->slot(index);
    slot.size = error ? 0 : batch.size;
    slot.batch = std::move(batch);
    slot.error = error;
    slot.started = true;
    ++begun_;
  } else {
    end_ = index;
  }
  work_.notify_all();
  ready_.notify_one();
}

void Prefetcher::make_part(Slot& slot, int64_t index, std::unique_lock<std::mutex>& lock) {
  const SampleRange part{slot.claimed, std::min(slot.claimed + options_.part_samples, slot.size)};
  slot.claimed = part.last;
  lock.unlock();
  std::exception_ptr error;
  try {
    maker_.fill(index, part, stop_, &slot.batch);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  if (error && (!slot.error || part.first < slot.error_at)) {
    slot.error = error;
    slot.error_at = part.first;
  }
  slot.done += part.last - part.first;
  if (slot.ready()) ready_.notify_one();
}

}  // namespace tessera::data
