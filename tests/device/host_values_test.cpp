// SPDX-License-Identifier: Apache-2.0
// Numbers of the host for a pass: made once, given to the recording, made anew for each replay.
#include "tessera/device/host_values.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "../error_text.h"

namespace tessera::device {
namespace {

TEST(HostMade, WithoutARecordingEachCallMakesItsOwn) {
  int made = 0;
  const auto make = [&] { return at::full({2}, ++made); };
  EXPECT_TRUE(host_values(at::kCPU, make).equal(at::full({2}, 1)));
  EXPECT_TRUE(host_values(at::kCPU, make).equal(at::full({2}, 2)));
}

TEST(HostValues, AreGivenInTheirOrderAndMadeAnewWhereTheyAre) {
  double a = 1, b = 2;
  std::vector<at::Tensor> seen;
  const auto pass = [&] {
    seen = {host_values(at::kCPU, [&] { return at::full({3}, a); }),
            host_values(at::kCPU, [&] { return at::full({2}, b); })};
  };
  HostValues numbers;
  numbers.collect(pass);
  EXPECT_EQ(numbers.size(), 2U);
  const std::vector<at::Tensor> collected = seen;
  a = 5;
  numbers.give(pass);
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(seen[i].is_same(collected[i]));
  EXPECT_TRUE(seen[0].equal(at::full({3}, 1.0)));
  b = 7;
  numbers.renew();
  EXPECT_TRUE(seen[0].equal(at::full({3}, 5.0)));
  EXPECT_TRUE(seen[1].equal(at::full({2}, 7.0)));
}

TEST(HostValues, APassThatAsksOtherwiseIsAnError) {
  const auto ask = [](int times) {
    return [=] {
      for (int i = 0; i < times; ++i) host_values(at::kCPU, [] { return at::zeros({}); });
    };
  };
  HostValues numbers;
  numbers.collect(ask(2));
  EXPECT_THROW(numbers.give(ask(3)), InternalError);
  EXPECT_THROW(numbers.give(ask(1)), InternalError);
  numbers.give(ask(2));  // nothing of it stays
  numbers.collect(ask(1));
  EXPECT_EQ(numbers.size(), 1U);
  HostValues other;
  EXPECT_THROW(numbers.give([&] { other.collect(ask(1)); }), InternalError);
}

}  // namespace
}  // namespace tessera::device
