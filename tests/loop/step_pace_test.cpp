// SPDX-License-Identifier: Apache-2.0
#include "tessera/loop/step_pace.h"

#include <gtest/gtest.h>

namespace tessera::loop {
namespace {

TEST(StepPace, IsTheMedianOfTheStepsBehindTheFirst) {
  std::vector<double> told;
  StepPace pace([&](double seconds) { told.push_back(seconds); });
  EXPECT_FALSE(pace.seconds().has_value());
  for (int i = 0; i < 5; ++i) pace.add(100);  // warm-up
  for (int i = 1; i <= 14; ++i) pace.add(i);
  EXPECT_TRUE(told.empty());
  EXPECT_EQ(pace.seconds(), 7.5);  // of 1 to 14
  pace.add(15);
  EXPECT_EQ(told, std::vector<double>{8});
  for (int i = 0; i < 30; ++i) pace.add(1000);
  EXPECT_EQ(pace.seconds(), 8.0);
  pace.end();
  EXPECT_EQ(told.size(), 1u);
}

TEST(StepPace, OfAShortRunIsToldAtItsEnd) {
  std::vector<double> told;
  StepPace pace([&](double seconds) { told.push_back(seconds); });
  pace.add(9);
  pace.end();
  EXPECT_TRUE(told.empty()) << "a first step says nothing of others";
  pace.add(2);
  pace.add(3);
  pace.end();
  EXPECT_EQ(told, std::vector<double>{2.5});
}

TEST(StepPace, ShortRunsLeaveOutHalf) {
  StepPace pace(nullptr);
  pace.add(9);
  EXPECT_EQ(pace.seconds(), 9.0);
  pace.add(2);
  EXPECT_EQ(pace.seconds(), 2.0);
  pace.add(3);
  pace.add(4);
  EXPECT_EQ(pace.seconds(), 3.5);
}

}  // namespace
}  // namespace tessera::loop
