// SPDX-License-Identifier: Apache-2.0
#include "tessera/profile/quiet_cores.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/base/clock.h"
#include "tessera/base/median.h"
#include "tessera/profile/over_ranks.h"

namespace tessera::profile {
namespace {

constexpr std::chrono::milliseconds kBetween{2};
/// Pieces of arithmetic that find out how long it takes where nothing slows it.
constexpr int64_t kAtFirst = 50;

/// Of the calling thread's core.
double seconds_of_this_core() {
  constexpr int64_t kValues = 2048, kPasses = 600, kTimes = 5;
  constexpr float kFactor = 0.999F;
  std::array<float, kValues> x{}, y{};
  std::vector<double> seconds;
  for (int64_t i = 0; i < kTimes; ++i) {
    const double start = clock_seconds(CLOCK_THREAD_CPUTIME_ID);
    for (int64_t pass = 0; pass < kPasses; ++pass) {
      for (size_t j = 0; j < kValues; ++j) y[j] = y[j] * kFactor + x[j];
      asm volatile("" : : "r"(y.data()) : "memory");  // each pass is made
    }
    seconds.push_back(clock_seconds(CLOCK_THREAD_CPUTIME_ID) - start);
  }
  return median(seconds);
}

}  // namespace

double arithmetic_seconds() {
  std::vector<double> of_threads(static_cast<size_t>(at::get_num_threads()));
  at::parallel_for(0, std::ssize(of_threads), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) of_threads[static_cast<size_t>(i)] = seconds_of_this_core();
  });
  return std::ranges::max(of_threads);
}

QuietCores::QuietCores(double patience, Largest largest, std::function<double()> arithmetic)
    : patience_(patience), largest_(std::move(largest)), arithmetic_(std::move(arithmetic)) {
  for (int64_t i = 0; patience > 0 && i < kAtFirst; ++i) seen_.push_back(arithmetic_());
  std::ranges::sort(seen_);
}

double QuietCores::usual_seconds() const {
  constexpr size_t kOneOf = 50;
  return seen_[seen_.size() / kOneOf];
}

QuietCores::Slowed QuietCores::is_slowed(double seconds) {
  if (patience_ == 0) return kNo;
  const double arithmetic = arithmetic_();
  seen_.insert(std::ranges::upper_bound(seen_, arithmetic), arithmetic);
  const Slowed mine = arithmetic <= kSlowed * usual_seconds() ? kNo
                      : may_take(seconds)                     ? kYesAndThereIsTime
                                                              : kYes;
  return static_cast<Slowed>(largest_(mine));  // clocks of ranks differ, so they must agree
}

void QuietCores::wait() {
  auto start = std::chrono::steady_clock::now();
  Slowed slowed = is_slowed(/*seconds=*/0);
  while (slowed == kYesAndThereIsTime) {
    std::this_thread::sleep_for(kBetween);
    extra_ += seconds_since(start);
    start = std::chrono::steady_clock::now();
    slowed = is_slowed(/*seconds=*/0);
  }
  began_slowed_ = slowed == kYes;
  began_ = std::chrono::steady_clock::now();
}

void QuietCores::look() { began_slowed_ = is_slowed(/*seconds=*/0) != kNo; }

bool QuietCores::were_slowed() { return is_slowed(/*seconds=*/0) != kNo || began_slowed_; }

bool QuietCores::should_repeat() {
  const double seconds = seconds_since(began_);
  const Slowed slowed = is_slowed(seconds);
  if (slowed == kYesAndThereIsTime) {
    extra_ += seconds;
    return true;
  }
  useful_ += seconds;
  ++measurements_;
  if (slowed == kYes || began_slowed_) ++slowed_;
  return false;
}

QuietCores::Largest largest_of(mesh::Group& ranks) {
  return [&ranks](double mine) { return largest_over_ranks(mine, ranks, "profile"); };
}

}  // namespace tessera::profile
