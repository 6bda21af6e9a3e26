// SPDX-License-Identifier: Apache-2.0
// Keys about how a run is watched and kept: what contradicts is told in a line.
#include <gtest/gtest.h>

#include "tessera/recipe/last_set.h"
#include "tests/recipe/recipe_text.h"

namespace tessera::recipe {
namespace {

TEST(RunKeys, ErrorsSayWhatIsWanted) {
  EXPECT_EQ(read_error("guard.spike_factor = 0.5"),
            "[recipe.parse] guard.spike_factor is 0.5 (test.toml): expected 0 (off) or a value above 1; at 1 "
            "or less, half of all losses would be spikes");
  EXPECT_EQ(
      read_error("checkpoint.best = 'loss_ema'"),
      "[recipe.parse] checkpoint.best is \"loss_ema\", but ema.decay is 0 (test.toml): expected a moving "
      "average of the weights (ema.decay above 0); set ema.decay, or choose another checkpoint.best");
  EXPECT_EQ(read_error("checkpoint.best = 'loss_ema'\nema.decay = 0.9"), "no error");
  EXPECT_EQ(read_error("run.trace = '12:10'"),
            "[recipe.parse] run.trace is \"12:10\" (test.toml): expected steps FIRST:LAST, counted from 1");
  EXPECT_NE(read_error("checkpoint.best = 'top2'").find("checkpoint.best is \"top2\""), std::string::npos);
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

// It was a flag once: saved recipes and commands with true or false mean the same as then.
TEST(RunKeys, CudaGraphsTakesTheFlagOfOlderRecipes) {
  const auto graphs = [](const std::string& toml, const std::vector<std::string>& sets = {}) {
    return read(toml, sets).run.cuda_graphs;
  };
  EXPECT_EQ(graphs(""), CudaGraphs::kAuto);
  for (const auto& [text, expected] :
       {std::pair("false", CudaGraphs::kOff), std::pair("true", CudaGraphs::kPass),
        std::pair("\"off\"", CudaGraphs::kOff), std::pair("\"auto\"", CudaGraphs::kAuto),
        std::pair("\"pass\"", CudaGraphs::kPass), std::pair("\"step\"", CudaGraphs::kStep)}) {
    EXPECT_EQ(graphs(concat("run.cuda_graphs = ", text)), expected) << text;
    EXPECT_EQ(graphs("", {concat("run.cuda_graphs=", text)}), expected) << text;
  }
  EXPECT_EQ(graphs("", {"run.cuda_graphs=step"}), CudaGraphs::kStep);
  const Recipe recipe = read("run.cuda_graphs = true");
  EXPECT_EQ(read(to_toml(recipe)).run.cuda_graphs, CudaGraphs::kPass);
  EXPECT_NE(to_toml(recipe).find("cuda_graphs = \"pass\""), std::string::npos);
  EXPECT_NE(read_error("run.cuda_graphs = 'all'")
                .find("run.cuda_graphs is \"all\" (test.toml:1): expected one of auto, off, pass, step"),
            std::string::npos);
  EXPECT_NE(read_error("run.cuda_graphs = 1").find("run.cuda_graphs is the integer 1"), std::string::npos);
}

TEST(LastSet, IsTheValueOfTheLastThatNamesTheKey) {
  const std::vector<std::string> sets = {"run.timeout=5", "run.timeouts=6", "data.classes=a=b",
                                         "run.timeout=7"};
  EXPECT_EQ(last_set(sets, "run.timeout"), "7");
  EXPECT_EQ(last_set(sets, "data.classes"), "a=b");
  EXPECT_EQ(last_set(sets, "run.time"), std::nullopt);
  EXPECT_EQ(last_set({"run.timeout"}, "run.timeout"), std::nullopt);
  EXPECT_EQ(last_set(sets, "model.heads"), std::nullopt);
}

}  // namespace
}  // namespace tessera::recipe
