// SPDX-License-Identifier: Apache-2.0
#include "tessera/profile/kernel_times.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "tessera/base/clock.h"

namespace tessera::train {
namespace {

const KernelTime& named(const std::vector<KernelTime>& times, const std::string& name) {
  const auto found = std::ranges::find(times, name, &KernelTime::name);
  if (found == times.end()) throw std::logic_error("no time of " + name);
  return *found;
}

TEST(KernelTimes, CountsCallsAndNeverATimeTwice) {
  const at::Tensor a = at::randn({300, 300});
  const auto start = std::chrono::steady_clock::now();
  const std::vector<KernelTime> times = kernel_times(at::kCPU, [&] {
    for (int i = 0; i < 3; ++i) {
      RECORD_USER_SCOPE("outer");
      const at::Tensor b = at::mm(a, a);
      {
        RECORD_USER_SCOPE("inner");
        at::mm(b, a).exp_();
      }
    }
  });
  const double wall = seconds_since(start);
  EXPECT_EQ(named(times, "outer").calls, 3);
  EXPECT_EQ(named(times, "inner").calls, 3);
  EXPECT_EQ(named(times, "aten::mm").calls, 6);
  EXPECT_EQ(named(times, "aten::exp_").calls, 3);
  double total = 0;
  for (const KernelTime& time : times) {
    EXPECT_GE(time.seconds, 0) << time.name;
    total += time.seconds;
  }
  EXPECT_LE(total, wall);
  EXPECT_TRUE(std::ranges::is_sorted(times, std::greater<>(), &KernelTime::seconds));
  // What is inside of a scope counts there alone: the scopes themselves do next to nothing.
  EXPECT_GT(named(times, "aten::mm").seconds, named(times, "outer").seconds);
}

TEST(KernelTimes, WorkThatFailsEndsTheProfile) {
  EXPECT_THROW(kernel_times(at::kCPU, [] { throw std::runtime_error("failed"); }), std::runtime_error);
  EXPECT_EQ(named(kernel_times(at::kCPU, [] { at::zeros({2}); }), "aten::zeros").calls, 1);
}

}  // namespace
}  // namespace tessera::train
