// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "sample_state.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/names.h"

namespace tessera::checkpoint {
namespace {
using namespace testing;
namespace fs = std::filesystem;

class Find : public ::testing::Test {
 protected:
  Find() {
    for (const int64_t step : {800, 900, 1000}) save_sample({.folder = checkpoints}, step);
    fs::remove(checkpoints / "step_00001000" / "manifest.json");
  }
  std::string error(const std::string& which) {
    return error_text([&] { find(checkpoints, which); });
  }
  const TemporaryFolder run{"tessera-checkpoint"};
  const fs::path checkpoints = run.path() / "checkpoints";
};

TEST_F(Find, LatestIsTheHighestStepWithAManifest) {
  EXPECT_EQ(find(checkpoints, "latest"), checkpoints / "step_00000900");
}

TEST_F(Find, AFileOfWeightsNamesTheCommandThatMakesACheckpointOfIt) {
  const fs::path weights = run.path() / "vit.safetensors", notes = run.path() / "notes.txt";
  for (const fs::path& file : {weights, notes}) write_file_atomic(file, "x");
  const std::string wanted = " is a file: expected the folder of a run or of a checkpoint";
  EXPECT_EQ(error(weights.string()), "[checkpoint.find] " + weights.string() + wanted +
                                         "; convert weights to a checkpoint: tessera checkpoint convert " +
                                         weights.string() + " runs/vit/checkpoints");
  EXPECT_EQ(error(notes.string()), "[checkpoint.find] " + notes.string() + wanted);
  EXPECT_EQ(error_text([&] { find_parts({notes}, "latest"); }),
            "[checkpoint.find] " + notes.string() + wanted);
}

TEST_F(Find, LatestOfNothingIsNothing) { EXPECT_EQ(find(run.path() / "nowhere", "latest"), std::nullopt); }

// A link to itself cannot be looked into by any user: the same as a folder without permission, or a disk that
// fails.
TEST_F(Find, WhatCannotBeReadIsNotTakenForNothing) {
  const fs::path newest = checkpoints / "step_00001100", elsewhere = run.path() / "elsewhere";
  const auto unreadable = [](const fs::path& path) {
    return "[checkpoint.find] cannot read " + path.string() +
           ": Too many levels of symbolic links; make it readable or move it away; nothing was changed";
  };
  fs::create_symlink(newest.filename(), newest);
  EXPECT_EQ(error("latest"), unreadable(newest));
  EXPECT_EQ(error("1100"), unreadable(newest));
  EXPECT_EQ(error(newest.string()), unreadable(newest));
  EXPECT_EQ(error_text([&] { find_parts({run.path()}, "latest"); }), unreadable(newest));
  EXPECT_EQ(find(checkpoints, "900"), checkpoints / "step_00000900") << "what was named can be read";
  EXPECT_NE(error("1000").find("; the checkpoints beside it cannot be read"), std::string::npos);
  save_sample({.folder = checkpoints, .keep = 1}, 1200);
  EXPECT_EQ(find(checkpoints, "900"), checkpoints / "step_00000900") << "nobody knows which are old";

  fs::create_symlink("elsewhere", elsewhere);
  EXPECT_EQ(error_text([&] { find(elsewhere, "latest"); }), unreadable(elsewhere));
  write_file_atomic(run.path() / "file", "x");
  EXPECT_EQ(find(run.path() / "file", "latest"), std::nullopt) << "no folder, no checkpoints";
}

TEST_F(Find, StepsAndPaths) {
  for (const auto& which : {std::string("800"), std::string("00800"), std::string("step_00000800"),
                            (checkpoints / "step_00000800").string()}) {
    EXPECT_EQ(find(checkpoints, which), checkpoints / "step_00000800") << which;
  }
  EXPECT_EQ(find("elsewhere", checkpoints.string()), checkpoints / "step_00000900");
  EXPECT_EQ(find("elsewhere", run.path().string()), checkpoints / "step_00000900");
}

TEST_F(Find, AnUnfinishedStepNamesOneThatIsComplete) {
  EXPECT_EQ(error("1000"),
            concat("[checkpoint.find] checkpoint ", (checkpoints / "step_00001000").string(),
                   " is incomplete: it has no manifest.json, so the save did not finish; use step_00000900"));
  EXPECT_EQ(error((checkpoints / "step_00001000/").string()),
            concat("[checkpoint.find] checkpoint ", (checkpoints / "step_00001000/").string(),
                   " is incomplete: it has no manifest.json, so the save did not finish; use step_00000900"));
  fs::rename(checkpoints / "step_00001000", checkpoints / "step_00001000.tmp");
  EXPECT_EQ(error("1000"),
            concat("[checkpoint.find] checkpoint ", (checkpoints / "step_00001000.tmp").string(),
                   " is incomplete: it has no manifest.json, so the save did not finish; use step_00000900"));
}

TEST_F(Find, AnUnknownStepListsWhatIsThere) {
  EXPECT_EQ(error("850"),
            concat("[checkpoint.find] ", checkpoints.string(),
                   " has no checkpoint of step 850; name one of step_00000900, step_00000800, or latest"));
  for (int64_t step = 1; step <= 5; ++step) save_sample({.folder = checkpoints, .keep = 0}, step);
  EXPECT_EQ(error("850"), concat("[checkpoint.find] ", checkpoints.string(),
                                 " has no checkpoint of step 850; name one of step_00000900, step_00000800, "
                                 "step_00000005, step_00000004, step_00000003 and 2 older, or latest"));
  EXPECT_EQ(error_text([&] { find(run.path(), "3"); }),
            concat("[checkpoint.find] ", run.path().string(),
                   " has no checkpoint of step 3; it has no complete checkpoint"));
}

TEST_F(Find, Best) {
  EXPECT_EQ(error("best"), concat("[checkpoint.find] ", checkpoints.string(),
                                  " has no best.json, which marks the best checkpoint; use latest; complete "
                                  "checkpoints: step_00000900, step_00000800"));
  write_file_atomic(checkpoints / "best.json", R"({"step": 800})");
  EXPECT_EQ(find(checkpoints, "best"), checkpoints / "step_00000800");
  for (const char* text : {"", "[]", R"({"step": -1})", R"({"step": "1"})"}) {
    write_file_atomic(checkpoints / "best.json", text);
    EXPECT_EQ(error("best"), concat("[checkpoint.find] ", (checkpoints / "best.json").string(),
                                    " does not name the best checkpoint: expected {\"step\": N, ...}; remove "
                                    "the file, or name a step"));
  }
}

TEST_F(Find, AWrongWordNamesTheNearest) {
  EXPECT_EQ(error("lastest"),
            concat("[checkpoint.find] there is no checkpoint \"lastest\" in ", checkpoints.string(),
                   ", which has step_00000900, step_00000800: expected latest, best, a step or a path; did "
                   "you mean latest?"));
  EXPECT_NE(error("/no/such/path").find("there is no checkpoint \"/no/such/path\" in "), std::string::npos);
}

TEST(Names, OnlyWhatWasBuiltIsParsed) {
  EXPECT_EQ(names::step(1234), "step_00001234");
  EXPECT_EQ(names::parse_step(names::step(123456789012)), 123456789012);
  EXPECT_EQ(names::parse_step("step_00000007.tmp", ".tmp"), 7);
  EXPECT_EQ(names::shard(3, 12), "shard-00003-of-00012.safetensors");
  for (const char* wrong : {"step_", "step_7", "step_000000007", "step_0000000a", "step_00000007.tmp", "",
                            "step_00000007 ", "step_9999999999999999999"}) {
    EXPECT_EQ(names::parse_step(wrong), std::nullopt) << wrong;
  }
  EXPECT_EQ(names::region("w", Region::whole({2, 3}), {2, 3}), "w");
  EXPECT_EQ(names::region("w", Region::interval({2, 3}, 0, 5), {2, 3}), "w[0:5]");
  EXPECT_EQ(names::region("w", Region::of({{{0, 2}, {1, 3}}}), {2, 3}), "w[0:2, 1:3]");
  EXPECT_EQ(names::region("w", {{{{0, 2}, {1, 3}}}, 1, 4}, {2, 3}), "w[0:2, 1:3][1:4]");
}

TEST_F(Find, PartsOfRunsFoldersAndCheckpoints) {
  const auto one = checkpoints / "step_00000900";
  EXPECT_EQ(find_parts({run.path()}, "latest").paths, std::vector<fs::path>({one}));
  EXPECT_EQ(find_parts({checkpoints}, "800").paths, std::vector<fs::path>({checkpoints / "step_00000800"}));
  EXPECT_EQ(find_parts({one, run.path()}, "latest").paths, std::vector<fs::path>({one, one}));
  const auto error = [&](const fs::path& place, const std::string& which = "latest") {
    return error_text([&] { find_parts({place}, which); });
  };
  EXPECT_EQ(error(checkpoints / "step_00001000"),
            concat("[checkpoint.find] checkpoint ", (checkpoints / "step_00001000").string(),
                   " is incomplete: it has no manifest.json, so the save did not finish; use step_00000900"));
  EXPECT_TRUE(
      error(run.path(), "7")
          .ends_with(" has no checkpoint of step 7; name one of step_00000900, step_00000800, or latest"));
  EXPECT_EQ(error(run.path() / "nowhere"),
            concat("[checkpoint.find] ", (run.path() / "nowhere").string(),
                   " does not exist: expected the folder of a run or of a checkpoint"));
  fs::create_directories(run.path() / "new" / "checkpoints");
  EXPECT_EQ(error(run.path() / "new"),
            concat("[checkpoint.find] ", (run.path() / "new" / "checkpoints").string(),
                   " has no complete checkpoint"));
}

}  // namespace
}  // namespace tessera::checkpoint
