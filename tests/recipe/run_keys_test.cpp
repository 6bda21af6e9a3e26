// SPDX-License-Identifier: Apache-2.0
// Keys about how a run is watched and kept: what contradicts is told in a line.
#include <gtest/gtest.h>

#include "tests/recipe/recipe_text.h"

namespace tessera::recipe {
namespace {

TEST(RunKeys, ErrorsSayWhatIsWanted) {
  EXPECT_EQ(
      read_error("guard.spike_factor = 0.5"),
      "[recipe.parse] guard.spike_factor must be 0 or above 1, else half of all losses are spikes: found "
      "0.5 (test.toml)");
  EXPECT_EQ(read_error("checkpoint.best = 'loss_ema'"),
            "[recipe.parse] checkpoint.best = \"loss_ema\" needs a moving average of the weights: found "
            "ema.decay = 0 (test.toml)");
  EXPECT_EQ(read_error("checkpoint.best = 'loss_ema'\nema.decay = 0.9"), "no error");
  EXPECT_EQ(read_error("run.trace = '12:10'"),
            "[recipe.parse] run.trace must be steps as FIRST:LAST, from 1 on: found \"12:10\" (test.toml)");
  EXPECT_NE(read_error("checkpoint.best = 'top2'").find("checkpoint.best must be"), std::string::npos);
}

TEST(RunKeys, DefaultsStopAtBadNumbersAndLimitNothing) {
  const Recipe recipe = read("");
  EXPECT_EQ(recipe.guard, monitor::GuardOptions{});
  EXPECT_EQ(recipe.guard.skip_steps, 0);
  EXPECT_EQ(recipe.guard.spike_factor, 0);
  EXPECT_EQ(recipe.checkpoint.best, "top1");
  EXPECT_EQ(recipe.run.time_limit, 0);
  EXPECT_EQ(recipe.run.wandb, "");  // no Python is started
}

}  // namespace
}  // namespace tessera::recipe
