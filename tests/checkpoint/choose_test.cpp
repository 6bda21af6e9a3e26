// SPDX-License-Identifier: Apache-2.0
// Which checkpoint commands take, and what they do when it is damaged.
#include <gtest/gtest.h>

#include "sample_state.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/names.h"

namespace tessera::checkpoint {
namespace {
using namespace testing;
namespace fs = std::filesystem;

class Choose : public ::testing::Test {
 protected:
  Choose() {
    for (const int64_t step : {1, 2, 3, 4}) {
      save_sample(
          {.folder = checkpoints, .keep = 0, .best = step <= 2, .score = double(step), .keep_best = 2}, step);
    }
  }
  void flip_a_byte(int64_t step) {
    const fs::path shard = checkpoints / names::step(step) / names::shard(0, 1);
    std::string content = read_file(shard);
    content.at(content.size() - 3) ^= 1;
    write_file_atomic(shard, content);
  }
  std::string chosen(const std::string& which, size_t passed_over = 0) {
    const auto choice = choose(run.path(), which);
    if (!choice) return "none";
    EXPECT_EQ(choice->passed_over.size(), passed_over);
    return choice->path.filename().string();
  }
  const TemporaryFolder run{"tessera-choose"};
  const fs::path checkpoints = run.path() / "checkpoints";
};

TEST_F(Choose, WholeOnesAreTakenAsAskedFor) {
  EXPECT_EQ(chosen("latest"), "step_00000004");
  EXPECT_EQ(chosen("best"), "step_00000002");
  EXPECT_EQ(chosen(kBestOrLatest), "step_00000002");
  EXPECT_EQ(chosen("3"), "step_00000003");
  EXPECT_EQ(choose(checkpoints / "step_00000001", "latest")->path, checkpoints / "step_00000001");
  fs::remove(checkpoints / names::kBest);
  EXPECT_EQ(chosen(kBestOrLatest), "step_00000004");
  EXPECT_FALSE(choose(run.path() / "nowhere", "latest"));
}

TEST_F(Choose, TheNewestWholeOneReplacesADamagedOne) {
  flip_a_byte(4);
  EXPECT_EQ(chosen("latest", 1), "step_00000003");
  fs::remove(checkpoints / "step_00000003" / names::shard(0, 1));
  EXPECT_EQ(chosen("latest", 2), "step_00000002");
  EXPECT_EQ(chosen("4"), "step_00000004") << "a step that was named is never replaced";
  const auto choice = choose(run.path(), "latest");
  const std::string text = passed_over_text(*choice);
  EXPECT_NE(text.find("step_00000004: "), std::string::npos) << text;
  EXPECT_NE(text.find("has the checksum "), std::string::npos) << text;
  EXPECT_NE(text.find(" is missing ("), std::string::npos) << text;
  EXPECT_NE(text.find("step_00000002 is taken instead"), std::string::npos) << text;
}

TEST_F(Choose, ALostManifestIsSaid) {
  fs::remove(checkpoints / "step_00000004" / names::kManifest);
  EXPECT_EQ(chosen("latest", 1), "step_00000003");
  EXPECT_NE(error_text([&] {
              choose(run.path(), "latest", OnDamage::kFail);
            }).find("step_00000004 has no manifest.json"),
            std::string::npos);
}

TEST_F(Choose, TheSecondBestReplacesADamagedBest) {
  flip_a_byte(2);
  EXPECT_EQ(chosen("best", 1), "step_00000001");
  EXPECT_EQ(chosen(kBestOrLatest, 1), "step_00000001");
  write_file_atomic(checkpoints / names::kBest, "{\"step\"");
  EXPECT_EQ(chosen("best", 1), "step_00000004") << "nobody knows the best: the newest";
  EXPECT_NE(best_fault(checkpoints), "");
  set_aside_after(checkpoints, 3);
  EXPECT_EQ(best_fault(checkpoints), "");
  EXPECT_TRUE(fs::exists(checkpoints / names::kAbandonedBest));
}

TEST_F(Choose, NothingIsReplacedWhereDamageIsFatal) {
  flip_a_byte(4);
  const std::string text = error_text([&] { choose(run.path(), "latest", OnDamage::kFail); });
  EXPECT_NE(text.find("has the checksum "), std::string::npos) << text;
  EXPECT_NE(text.find("step_00000004"), std::string::npos) << text;
  EXPECT_NE(error_text([&] {
              refuse_passed_over(*choose(run.path(), "latest"));
            }).find("checkpoint.on_damage = \"fall_back\""),
            std::string::npos);
}

TEST_F(Choose, NoWholeOneIsTheNewestsError) {
  for (const int64_t step : {1, 2, 3, 4}) flip_a_byte(step);
  EXPECT_EQ(chosen("latest"), "step_00000004");
}

TEST_F(Choose, RanksAgreeAndEachFileIsReadByOne) {
  flip_a_byte(4);
  std::vector<std::string> names(3);
  for (const std::string& error : run_ranks(3, [&](const Ranks& ranks) {
         names[static_cast<size_t>(ranks.rank)] =
             choose(run.path(), "latest", OnDamage::kFallBack, ranks)->path.filename().string();
       }))
    EXPECT_EQ(error, "");
  EXPECT_EQ(names, std::vector<std::string>(3, "step_00000003"));
}

TEST_F(Choose, LeftoversOfKilledSavesAreCleared) {
  fs::create_directory(checkpoints / "step_00000005.tmp");
  write_file_atomic(checkpoints / "rank-00000-0123456789abcdef.mark", "");
  fs::rename(checkpoints / "step_00000004", checkpoints / "step_00000004.old");
  clear_leftovers(checkpoints);
  EXPECT_FALSE(fs::exists(checkpoints / "step_00000005.tmp"));
  EXPECT_FALSE(fs::exists(checkpoints / "rank-00000-0123456789abcdef.mark"));
  EXPECT_EQ(chosen("latest"), "step_00000004");
  clear_leftovers(run.path() / "nowhere");
  EXPECT_FALSE(fs::exists(run.path() / "nowhere"));
}

}  // namespace
}  // namespace tessera::checkpoint
