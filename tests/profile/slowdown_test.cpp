// SPDX-License-Identifier: Apache-2.0
#include "tessera/profile/slowdown.h"

#include <gtest/gtest.h>

namespace tessera::profile {
namespace {

TEST(Slowdown, NoneWhereBothAreAsFastAsAlone) {
  const Slowdown found = slowdown_of({.pass_alone = 2, .message_alone = 5, .pass = 2, .message = 5});
  EXPECT_DOUBLE_EQ(found.compute, 1);
  EXPECT_DOUBLE_EQ(found.link, 1);
}

TEST(Slowdown, OfAMessageThatOutlastsThePass) {
  // Beside 3 s of the pass the message came as far as in 1.5 s alone; its rest took 3.5 s.
  const Slowdown found = slowdown_of({.pass_alone = 2, .message_alone = 5, .pass = 3, .message = 6.5});
  EXPECT_DOUBLE_EQ(found.compute, 1.5);
  EXPECT_DOUBLE_EQ(found.link, 2);
}

TEST(Slowdown, OfAMessageThatEndsFirst) {
  const Slowdown found = slowdown_of({.pass_alone = 4, .message_alone = 1, .pass = 5, .message = 2});
  EXPECT_DOUBLE_EQ(found.compute, 1.25);
  EXPECT_DOUBLE_EQ(found.link, 2);
}

TEST(Slowdown, IsAtLeast1) {
  const Slowdown found = slowdown_of({.pass_alone = 2, .message_alone = 5, .pass = 1.9, .message = 4});
  EXPECT_DOUBLE_EQ(found.compute, 1);
  EXPECT_DOUBLE_EQ(found.link, 1);
}

}  // namespace
}  // namespace tessera::profile
