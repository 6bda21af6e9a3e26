// SPDX-License-Identifier: Apache-2.0
#include "tessera/profile/slowdown.h"

#include <gtest/gtest.h>

namespace tessera::profile {
namespace {

TEST(LinkSlowdown, NoneWhereMessagesAreAsFastAsAlone) {
  EXPECT_DOUBLE_EQ(link_slowdown_of({.pass_alone = 2, .message_alone = 5, .pass = 2, .message = 5}), 1);
  EXPECT_DOUBLE_EQ(link_slowdown_of({.pass_alone = 2, .message_alone = 5, .pass = 1.9, .message = 4}), 1)
      << "never less";
}

TEST(LinkSlowdown, OfAMessageThatOutlastsThePass) {
  // Beside 3 s of the pass the message came as far as in 1.5 s alone; its rest took 3.5 s.
  EXPECT_DOUBLE_EQ(link_slowdown_of({.pass_alone = 2, .message_alone = 5, .pass = 3, .message = 6.5}), 2);
}

TEST(LinkSlowdown, OfAMessageThatEndsFirst) {
  EXPECT_DOUBLE_EQ(link_slowdown_of({.pass_alone = 4, .message_alone = 1, .pass = 5, .message = 2}), 2);
}

TEST(SecondsBeside, AreThoseOfTheMessageUntilThePassEnds) {
  EXPECT_DOUBLE_EQ(seconds_beside({.pass_alone = 4, .message_alone = 1, .pass = 5, .message = 2}), 1);
  EXPECT_DOUBLE_EQ(seconds_beside({.pass_alone = 4, .message_alone = 1, .pass = 5, .message = 5}), 1);
  EXPECT_DOUBLE_EQ(seconds_beside({.pass_alone = 2, .message_alone = 5, .pass = 3, .message = 6.5}), 1.5);
  EXPECT_DOUBLE_EQ(seconds_beside({.pass_alone = 2, .message_alone = 5, .pass = 3, .message = 9}), 0);
}

// A message of 1 s alone is under way for 2 s, of which passes use 1.25 s: they lose 0.75 s.
TEST(Slowdown, OfPassesFollowsFromWhatTheyLose) {
  const Slowdown found = slowdown_of(2, 0.75);
  EXPECT_DOUBLE_EQ(found.compute, 2 / 1.25);
  EXPECT_DOUBLE_EQ(found.link, 2);
  EXPECT_DOUBLE_EQ(slowdown_of(1.5, 0).compute, 1);
  EXPECT_DOUBLE_EQ(slowdown_of(1.5, -0.1).compute, 1) << "they were faster beside messages";
}

TEST(Slowdown, PassesAreNotSlowedMoreThanTenfold) {
  const Slowdown found = slowdown_of(1.5, 1.8);
  EXPECT_DOUBLE_EQ(found.link, 2);
  EXPECT_NEAR(found.compute, 10, 1e-9);
  EXPECT_NEAR(found.link * (1 - 1 / found.compute), 1.8, 1e-9);
}

}  // namespace
}  // namespace tessera::profile
