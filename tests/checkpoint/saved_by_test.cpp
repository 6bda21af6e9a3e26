// SPDX-License-Identifier: Apache-2.0
// Runs that had one folder of checkpoints one after the other: none is read as the other.
#include "tessera/checkpoint/saved_by.h"

#include <gtest/gtest.h>

#include "sample_state.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/names.h"

namespace tessera::checkpoint {
namespace {
using namespace testing;
namespace fs = std::filesystem;

class SavedByTest : public ::testing::Test {
 protected:
  SavedByTest() {
    for (const char* run : {"a", "b"}) {
      fs::create_directories(path(run));
      write_file_atomic(path(run) / kRunId, concat("id of ", run, "\n"));
      fs::create_directory_symlink(path("ck"), path(run) / "checkpoints");
    }
    fs::create_directories(path("ck"));
  }
  fs::path path(const char* name) const { return folder_.path() / name; }
  void save_as(const SavedBy& run, int64_t step) {
    const auto errors = run_ranks(1, [&](const Ranks& ranks) {
      auto state = part_of(sample_tensors(), ranks.rank, ranks.world);
      state.fill(0);
      Progress progress = at_step(step);
      if (!run.id.empty()) progress.json = concat("{\"run\":", to_json_text(run), "}");
      save({.folder = path("ck"), .keep = 0}, state.shards, progress, ranks);
    });
    EXPECT_EQ(errors, std::vector<std::string>(1));
  }

  const TemporaryFolder folder_{"tessera-saved-by"};
};

TEST_F(SavedByTest, TheCheckpointOfAnotherRunIsRefusedAndBothAreNamed) {
  save_as({"id of b", path("b").string()}, 5);
  EXPECT_EQ(choose(path("b"), "latest")->path.filename(), "step_00000005");
  EXPECT_EQ(find_parts({path("b")}, "latest").paths.front().filename(), "step_00000005");
  const std::string problem = concat("step_00000005 was saved by the run in ", path("b").string(),
                                     ", not by that in ", path("a").string());
  for (const std::string& text :
       {error_text([&] { static_cast<void>(choose(path("a"), "latest")); }),
        error_text([&] { static_cast<void>(choose(path("a"), "5")); }),
        error_text([&] { static_cast<void>(choose(path("a") / "checkpoints", "latest")); }),
        error_text([&] { static_cast<void>(find_parts({path("a")}, "latest")); })}) {
    EXPECT_NE(text.find(problem), std::string::npos) << text;
    EXPECT_NE(text.find(concat("name the run in ", path("b").string(), ", or the checkpoint itself: ")),
              std::string::npos)
        << text;
  }
  const fs::path itself = path("a") / "checkpoints" / names::step(5);
  EXPECT_EQ(choose(itself, "latest")->path, itself) << "what is named itself is meant";
  EXPECT_EQ(choose(path("ck"), "latest")->path.filename(), "step_00000005") << "no run is named";
}

TEST_F(SavedByTest, WhereAnIdIsUnknownNothingIsRefused) {
  save_as({}, 5);
  EXPECT_TRUE(choose(path("a"), "latest"));
  save_as({"id of b", "b"}, 6);
  fs::remove(path("a") / kRunId);
  EXPECT_EQ(choose(path("a"), "latest")->path.filename(), "step_00000006");
}

TEST(RunId, SurvivesAFileAndIsNewForEveryRun) {
  const TemporaryFolder folder("tessera-run-id");
  EXPECT_EQ(run_id(folder.path()), "");
  const std::string id = new_run_id();
  EXPECT_EQ(id.size(), 16U);
  EXPECT_NE(id, new_run_id());
  write_file_atomic(folder.path() / kRunId, id + "\n");
  EXPECT_EQ(run_id(folder.path()), id);
  Progress progress;
  progress.json = concat("{\"run\":", to_json_text({id, "a \"b\""}), "}");
  const SavedBy back = saved_by(progress);
  EXPECT_EQ(back.id, id);
  EXPECT_EQ(back.folder, "a \"b\"");
  for (const char* json : {"", "{}", "[]", "{\"run\":3}", "{\"run\":{\"id\":3}}"}) {
    progress.json = json;
    EXPECT_EQ(saved_by(progress).id, "") << json;
  }
}

}  // namespace
}  // namespace tessera::checkpoint
