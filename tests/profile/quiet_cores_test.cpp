// SPDX-License-Identifier: Apache-2.0
#include "tessera/profile/quiet_cores.h"

#include <gtest/gtest.h>

#include <deque>

#include "tessera/base/clock.h"
#include "tessera/mesh/thread_ranks.h"

namespace tessera::profile {
namespace {

constexpr double kPatience = 0.5;

double alone(double mine) { return mine; }

/// Arithmetic that takes 1 s but where `later` says otherwise, once the usual time is known.
class Arithmetic {
 public:
  explicit Arithmetic(std::deque<double> later, double at_last = 1)
      : later_(std::move(later)), last_(at_last) {}
  double operator()() {
    if (!began_) return 1;
    if (later_.empty()) return last_;
    const double next = later_.front();
    later_.pop_front();
    return next;
  }
  void begin() { began_ = true; }

 private:
  bool began_ = false;
  std::deque<double> later_;
  double last_;
};

/// What calls of the measurement are the values of: 1, 2, ...
class Calls {
 public:
  int operator()() { return ++count_; }

 private:
  int count_ = 0;
};

TEST(QuietCores, TheFirstMeasurementCountsWhereNothingSlows) {
  QuietCores cores(kPatience, alone, [] { return 1.0; });
  EXPECT_EQ(cores.measured(Calls()), 1);
  EXPECT_EQ(cores.measurements(), 1);
  EXPECT_EQ(cores.slowed(), 0);
}

TEST(QuietCores, WhatWasSlowedIsMeasuredAgain) {
  Arithmetic arithmetic({/*before*/ 1, /*behind*/ 1.2, /*before*/ 1.2, 1, /*behind*/ 1.1});
  QuietCores cores(kPatience, alone, [&] { return arithmetic(); });
  arithmetic.begin();
  EXPECT_EQ(cores.measured(Calls()), 2);
  EXPECT_EQ(cores.measurements(), 1);
  EXPECT_EQ(cores.slowed(), 0);
}

TEST(QuietCores, WaitsUntilNothingSlows) {
  Arithmetic arithmetic({1.5, 1.5, 2, 1, 1});
  QuietCores cores(kPatience, alone, [&] { return arithmetic(); });
  arithmetic.begin();
  EXPECT_EQ(cores.measured(Calls()), 1);
  EXPECT_EQ(cores.slowed(), 0);
}

TEST(QuietCores, NoLongerThanAWhile) {
  Arithmetic arithmetic({}, /*at_last=*/2);
  QuietCores cores(kPatience, alone, [&] { return arithmetic(); });
  arithmetic.begin();
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(cores.measured(Calls()), 1);
  const double seconds = seconds_since(start);
  EXPECT_GE(seconds, 0.9 * kPatience * QuietCores::kFreeSeconds);
  EXPECT_LE(seconds, 10 * kPatience * QuietCores::kFreeSeconds);  // other tests run beside it
  EXPECT_EQ(cores.measurements(), 1);
  EXPECT_EQ(cores.slowed(), 1);
}

TEST(QuietCores, WithoutPatienceNothingIsLookedAt) {
  int looks = 0;
  QuietCores cores(/*patience=*/0, alone, [&] { return ++looks; });
  EXPECT_EQ(cores.measured(Calls()), 1);
  EXPECT_FALSE(cores.were_slowed());
  EXPECT_EQ(cores.slowed(), 0);
  EXPECT_EQ(looks, 0);
}

TEST(QuietCores, MomentsAloneOnACoreAreNotTheUsual) {
  int calls = 0;
  QuietCores cores(kPatience, alone, [&] { return ++calls % 100 == 0 ? 0.5 : 1.0; });
  EXPECT_EQ(cores.measured(Calls()), 1);
  EXPECT_EQ(cores.slowed(), 0);
}

TEST(QuietCores, ARequestSaysWhetherItWasSlowedAtEitherEnd) {
  Arithmetic arithmetic({1, 1, /*second*/ 1, 2, /*third*/ 2, 1, /*fourth*/ 1, 1});
  QuietCores cores(kPatience, alone, [&] { return arithmetic(); });
  arithmetic.begin();
  for (const bool slowed : {false, true, true, false}) {
    cores.look();
    EXPECT_EQ(cores.were_slowed(), slowed);
  }
}

TEST(QuietCores, AllRanksRepeatWhatOneOfThemWasSlowedIn) {
  mesh::run_on_thread_ranks({.axes = {{"host", 3}}}, [](mesh::Mesh& mesh) {
    Arithmetic arithmetic(mesh.rank() == 1 ? std::deque<double>{1, 2, 2, 1, 1} : std::deque<double>{});
    QuietCores cores(kPatience, largest_of(mesh.world()), [&] { return arithmetic(); });
    arithmetic.begin();
    EXPECT_EQ(cores.measured(Calls()), 2) << mesh.rank();
    EXPECT_EQ(cores.slowed(), 0);
  });
}

TEST(QuietCores, ArithmeticIsShort) {
  const double seconds = arithmetic_seconds();
  EXPECT_GT(seconds, 1e-5);
  EXPECT_LT(seconds, 0.1);
}

}  // namespace
}  // namespace tessera::profile
