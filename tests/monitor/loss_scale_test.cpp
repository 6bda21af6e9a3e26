// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/loss_scale.h"

#include <gtest/gtest.h>

#include "tests/error_text.h"

namespace tessera::monitor {
namespace {

/// After so many steps that were used.
void use(LossScale& scale, int64_t steps) {
  for (int64_t i = 0; i < steps; ++i) scale.used();
}

// What torch.amp.GradScaler("cpu") of PyTorch 2.11 says for the same steps: 65536; 32768 and 16384 after two
// that overflow; 16384 after 1,999 good ones; 32768 after the next; 65536 after 2,000 more.
TEST(LossScale, FollowsPyTorchs) {
  LossScale scale(LossScale::kFirst);
  EXPECT_EQ(scale.value(), 65536);
  scale.overflowed();
  EXPECT_EQ(scale.value(), 32768);
  scale.overflowed();
  EXPECT_EQ(scale.value(), 16384);
  use(scale, 1999);
  EXPECT_EQ(scale.value(), 16384);
  use(scale, 1);
  EXPECT_EQ(scale.value(), 32768);
  use(scale, 1999);
  scale.overflowed();
  EXPECT_EQ(scale.value(), 16384) << "an overflow begins the count anew";
  use(scale, 1999);
  EXPECT_EQ(scale.value(), 16384);
  use(scale, 1);
  EXPECT_EQ(scale.value(), 32768);
  EXPECT_EQ(scale.overflows(), 3);
}

TEST(LossScale, StopsShrinkingAtOne) {
  LossScale scale(2);
  EXPECT_TRUE(scale.can_shrink());
  scale.overflowed();
  EXPECT_EQ(scale.value(), 1);
  EXPECT_FALSE(scale.can_shrink()) << "then the guard decides";
}

TEST(LossScale, IsOneForDtypesWithTheRange) {
  LossScale scale;
  use(scale, 5000);
  EXPECT_EQ(scale.value(), 1);
  EXPECT_FALSE(scale.can_shrink());
  scale.restore(R"({"on": true, "value": 8, "good_in_a_row": 1, "overflows": 0})");
  EXPECT_EQ(scale.value(), 1) << "a run of fp16 goes on in bf16";
}

TEST(LossScale, GoesOnWhereItWasSaved) {
  LossScale scale(LossScale::kFirst), resumed(LossScale::kFirst);
  scale.overflowed();
  use(scale, 1500);
  resumed.restore(scale.to_json());
  for (int64_t i = 0; i < 1000; ++i) {
    scale.used();
    resumed.used();
    ASSERT_EQ(scale.value(), resumed.value()) << i;
  }
  EXPECT_EQ(resumed.overflows(), 1);
  LossScale least(1), again(1);
  use(least, 1500);
  again.restore(least.to_json());
  use(again, 500);
  EXPECT_EQ(again.value(), 2) << "the count goes on at 1 as well";
  resumed.restore("");
  EXPECT_EQ(resumed.value(), 65536);
  LossScale begun(LossScale::kFirst);
  begun.restore(LossScale().to_json());
  EXPECT_EQ(begun.value(), 65536) << "a run of bf16 goes on in fp16";
  EXPECT_NE(error_text([&] {
              resumed.restore("[]");
            }).find("[monitor.loss_scale] the saved state of the loss scale cannot be read: "),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::monitor
