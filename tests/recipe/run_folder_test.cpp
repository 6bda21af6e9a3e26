// SPDX-License-Identifier: Apache-2.0
// Which folder a run gets, and that no two runs get the same.
#include "tessera/recipe/run_folder.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <set>
#include <thread>
#include <vector>

#include "tessera/base/file.h"
#include "tests/error_text.h"

namespace tessera::recipe {
namespace {
namespace fs = std::filesystem;

/// Runs in a folder of its own; `runs/` is made below the working directory.
class RunFolders : public ::testing::Test {
 protected:
  RunFolders() : folder_("tessera-runs"), before_(fs::current_path()) { fs::current_path(folder_.path()); }
  ~RunFolders() override { fs::current_path(before_); }

  static Recipe named(const std::string& name, const std::string& dir = "") {
    Recipe recipe;
    recipe.name = name;
    recipe.run.dir = dir;
    return recipe;
  }
  static void leave_a_run_in(const fs::path& folder) {
    fs::create_directories(folder / "logs");
    write_file_atomic(folder / "recipe.toml", "x");
  }
  static void save_in(const fs::path& folder, const char* manifest = "manifest.json") {
    fs::create_directories(folder / "checkpoints" / "step_00000003");
    write_file_atomic(folder / "checkpoints" / "step_00000003" / manifest, "{}");
  }

  TemporaryFolder folder_;
  fs::path before_;
};

TEST_F(RunFolders, AreNumberedAndResumeTakesTheNewest) {
  for (const char* expected : {"mine", "mine-2", "mine-3"}) {
    const RunFolder claimed = claim_run_folder(named("mine"), "");
    EXPECT_EQ(claimed.path, fs::current_path() / "runs" / expected);
    EXPECT_TRUE(fs::is_directory(claimed.path / "logs"));
    leave_a_run_in(claimed.path);
  }
  EXPECT_EQ(claim_run_folder(named("mine"), "latest").path.filename(), "mine-3");
  EXPECT_EQ(claim_run_folder(named("other"), "latest").path.filename(), "other");
}

TEST_F(RunFolders, ACheckNamesTheFolderAndMakesNothing) {
  EXPECT_EQ(check_run_folder(named("mine"), ""), fs::current_path() / "runs" / "mine");
  EXPECT_EQ(check_run_folder(named("mine", "deep/er/run"), ""), fs::current_path() / "deep/er/run");
  EXPECT_TRUE(fs::is_empty(fs::current_path()));
  leave_a_run_in("runs/mine");
  save_in("runs/mine");
  EXPECT_EQ(check_run_folder(named("mine"), "").filename(), "mine-2");
  EXPECT_EQ(check_run_folder(named("mine"), "latest").filename(), "mine");
  EXPECT_EQ(error_text([&] { check_run_folder(named("mine", "runs/mine"), ""); }),
            error_text([&] { claim_run_folder(named("mine", "runs/mine"), ""); }));
  write_file_atomic("file", "x");
  EXPECT_EQ(error_text([&] { check_run_folder(named("mine", "file/run"), ""); }),
            "[train.folder] run.dir = file/run: " + (fs::current_path() / "file").string() +
                " is no folder: expected a folder that can be made or written; set another run.dir");
  Recipe elsewhere = named("mine");
  elsewhere.checkpoint.dir = "runs/mine/checkpoints";
  EXPECT_EQ(error_text([&] { check_run_folder(elsewhere, ""); }),
            "[train.checkpoint_dir] checkpoint.dir = runs/mine/checkpoints holds checkpoints of another run: "
            "expected a folder without checkpoints; continue that run with --resume, or set another folder");
  const RunFolder busy = claim_run_folder(named("mine", "busy"), "");
  EXPECT_EQ(error_text([&] { check_run_folder(named("mine", "busy"), ""); }),
            "[train.folder] run folder busy is in use by another process: expected a run that no other "
            "process is writing; wait for that process to end, or set another run.dir");
}

TEST_F(RunFolders, ResumeTakesTheNewestThatSavedAndNamesTheOthers) {
  for (const char* name : {"mine", "mine-2", "mine-3", "mine-4", "mine-5"})
    leave_a_run_in(fs::path("runs") / name);
  EXPECT_EQ(claim_run_folder(named("mine"), "latest").path.filename(), "mine-5")
      << "nothing is saved anywhere";
  write_file_atomic("runs/mine-5/summary.json", "{\"pretended\": true}");
  write_file_atomic("runs/mine-3/summary.json", "{\"val_top1\": 1}");
  EXPECT_EQ(claim_run_folder(named("mine"), "latest").path.filename(), "mine-4");
  save_in("runs/mine");
  save_in("runs/mine-2");
  save_in("runs/mine-3", "manifest.json.tmp");  // not complete
  for (const char* which : {"latest", "best", "3"}) {
    const RunFolder claimed = claim_run_folder(named("mine"), which);
    EXPECT_EQ(claimed.path.filename(), "mine-2");
    EXPECT_EQ(
        claimed.note,
        "--resume takes runs/mine-2, the newest run with a complete checkpoint: runs/mine-5 (pretended), "
        "runs/mine-4, runs/mine-3 have none");
  }
  save_in("runs/mine-4");
  EXPECT_EQ(
      claim_run_folder(named("mine"), "latest").note,
      "--resume takes runs/mine-4, the newest run with a complete checkpoint: runs/mine-5 (pretended) has "
      "none");
  save_in("runs/mine-5");  // whatever its summary says
  EXPECT_EQ(claim_run_folder(named("mine"), "latest").path.filename(), "mine-4");
  fs::remove("runs/mine-5/summary.json");
  const RunFolder newest = claim_run_folder(named("mine"), "latest");
  EXPECT_EQ(newest.path.filename(), "mine-5");
  EXPECT_EQ(newest.note, "");
}

// "t-2" may be the second run named "t" or the first named "t-2": the recipe inside knows.
TEST_F(RunFolders, ResumeGoesByTheNameThatARunHasSaved) {
  const auto run_of = [](const char* folder, const char* name) {
    leave_a_run_in(fs::path("runs") / folder);
    write_file_atomic(fs::path("runs") / folder / "recipe.toml",
                      concat("# a recipe\nname = \"", name, "\"\n"));
    save_in(fs::path("runs") / folder);
  };
  run_of("t", "t");
  run_of("t-2", "t-2");
  EXPECT_EQ(claim_run_folder(named("t"), "latest").path.filename(), "t");
  EXPECT_EQ(claim_run_folder(named("t-2"), "latest").path.filename(), "t-2");
  EXPECT_EQ(claim_run_folder(named("t"), "").path.filename(), "t-3");
  run_of("t-3", "t");
  EXPECT_EQ(claim_run_folder(named("t"), "latest").path.filename(), "t-3");
}

TEST_F(RunFolders, GapsHideNoRunAndAreNotFilled) {
  for (const char* name : {"mine", "mine-3", "mine-12"}) {
    leave_a_run_in(fs::path("runs") / name);
    save_in(fs::path("runs") / name);
  }
  for (const char* other : {"mine-012", "mine-x", "mine-4x", "mine-"})
    leave_a_run_in(fs::path("runs") / other);
  EXPECT_EQ(claim_run_folder(named("mine"), "latest").path.filename(), "mine-12");
  EXPECT_EQ(claim_run_folder(named("mine"), "").path.filename(), "mine-13");
  fs::remove_all("runs/mine");
  fs::remove_all("runs/mine-12");
  EXPECT_EQ(claim_run_folder(named("mine"), "latest").path.filename(), "mine-3");
}

TEST_F(RunFolders, ANewerRunThatGoesOnIsNotPassedOver) {
  leave_a_run_in("runs/mine");
  save_in("runs/mine");
  const RunFolder going_on = claim_run_folder(named("mine"), "");
  leave_a_run_in(going_on.path);
  EXPECT_EQ(error_text([] { claim_run_folder(named("mine"), "latest"); }),
            "[train.folder] run folder runs/mine-2 is in use by another process: expected a run that no "
            "other process is writing; wait for that process to end, or set another run.dir");
}

TEST_F(RunFolders, APretendedRunIsNotContinued) {
  leave_a_run_in("here");
  write_file_atomic("here/summary.json", "{\"pretended\": true, \"steps\": 1}");
  EXPECT_EQ(error_text([] { claim_run_folder(named("mine", "here"), "latest"); }),
            "[train.folder] run.dir = here holds a run of --pretend-world, which saves nothing to resume "
            "from; start anew without --resume, with another run.dir");
  leave_a_run_in("runs/mine");
  write_file_atomic("runs/mine/summary.json", "{\"pretended\": true}");
  EXPECT_EQ(claim_run_folder(named("mine"), "latest").path.filename(), "mine-2");
}

TEST_F(RunFolders, AStartThatFailsLeavesNone) {
  Recipe recipe = named("mine");
  recipe.checkpoint.dir = fs::current_path() / "elsewhere";
  {
    const RunFolder claimed = claim_run_folder(recipe, "");
    EXPECT_TRUE(claimed.made);
    checkpoint_folder(recipe, claimed.path, false);
    write_file_atomic(claimed.path / "logs" / "rank-1.log", "error: no");
    discard_run_folder(claimed);
    EXPECT_FALSE(fs::exists(claimed.path));
  }
  const RunFolder begun = claim_run_folder(named("mine"), "");
  leave_a_run_in(begun.path);
  discard_run_folder(begun);
  EXPECT_TRUE(fs::exists(begun.path / "logs"));

  const RunFolder noted = claim_run_folder(named("mine", "noted"), "");
  write_file_atomic(noted.path / "notes.txt", "mine");
  discard_run_folder(noted);
  EXPECT_TRUE(fs::exists(noted.path / "notes.txt"));

  fs::create_directory("there");
  const RunFolder there = claim_run_folder(named("mine", "there"), "");
  EXPECT_FALSE(there.made);
  discard_run_folder(there);
  EXPECT_TRUE(fs::exists("there/logs"));
}

TEST_F(RunFolders, StartedInOneInstantAreDifferent) {
  constexpr int kRuns = 8;
  std::vector<RunFolder> claimed(kRuns);
  std::vector<std::thread> threads;
  for (RunFolder& mine : claimed) {
    threads.emplace_back([&mine] { mine = claim_run_folder(named("mine"), ""); });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<fs::path> paths;
  for (const RunFolder& mine : claimed) paths.insert(mine.path);
  EXPECT_EQ(paths.size(), kRuns);
}

TEST_F(RunFolders, CheckpointsMayLieElsewhere) {
  Recipe recipe = named("mine");
  const fs::path run = claim_run_folder(recipe, "").path, elsewhere = fs::current_path() / "disk" / "deep";
  EXPECT_EQ(checkpoint_folder(recipe, run, false), run / "checkpoints");
  EXPECT_FALSE(fs::exists(run / "checkpoints"));

  recipe.checkpoint.dir = elsewhere;
  EXPECT_EQ(checkpoint_folder(recipe, run, false), run / "checkpoints");
  EXPECT_EQ(checkpoint_folder(recipe, run, false), run / "checkpoints") << "another rank of the host";
  fs::create_directory(run / "checkpoints" / "step_00000001");
  EXPECT_TRUE(fs::exists(elsewhere / "step_00000001"));
  EXPECT_EQ(checkpoint_folder(recipe, run, true), run / "checkpoints");

  leave_a_run_in(run);
  const fs::path second = claim_run_folder(recipe, "").path;
  EXPECT_EQ(error_text([&] { checkpoint_folder(recipe, second, false); }),
            concat("[train.checkpoint_dir] checkpoint.dir = ", elsewhere.string(),
                   " holds checkpoints of another run: expected a folder without checkpoints; continue that "
                   "run with --resume, or set another folder"));
  EXPECT_FALSE(fs::exists(fs::symlink_status(second / "checkpoints")));
  recipe.checkpoint.dir = fs::current_path() / "other";
  EXPECT_EQ(error_text([&] { checkpoint_folder(recipe, run, true); }),
            concat("[train.checkpoint_dir] checkpoint.dir = ", recipe.checkpoint.dir,
                   ", but this run has checkpoints in ", (run / "checkpoints").string(),
                   ": expected one folder for all checkpoints of a run; move the checkpoints there, or leave "
                   "checkpoint.dir as it was"));
  write_file_atomic(fs::current_path() / "file", "x");
  recipe.checkpoint.dir = fs::current_path() / "file" / "below";
  EXPECT_EQ(error_text([&] { checkpoint_folder(recipe, second, false); }),
            concat("[train.checkpoint_dir] cannot create checkpoint.dir ", recipe.checkpoint.dir,
                   ": Not a directory"));
}

TEST_F(RunFolders, CheckpointsElsewhereAreOfOneRunAtATime) {
  Recipe first = named("first"), second = named("second");
  first.checkpoint.dir = second.checkpoint.dir = fs::current_path() / "disk";
  const RunFolder runs[] = {claim_run_folder(first, ""), claim_run_folder(second, "")};
  const auto error = [&] {
    return error_text([&] { lock_checkpoints(second, runs[1].path, "the second run"); });
  };
  {
    const auto lock = lock_checkpoints(first, runs[0].path, "the first run");
    EXPECT_TRUE(lock.has_value());
    EXPECT_FALSE(lock_checkpoints(first, runs[0].path, "the first run").has_value()) << "its other host";
    EXPECT_EQ(error(), concat("[train.checkpoint_dir] checkpoint.dir ", second.checkpoint.dir,
                              " is in use by the first run: expected a folder that no other run saves into; "
                              "set another checkpoint.dir, or wait for that run to end"));
  }
  EXPECT_TRUE(lock_checkpoints(second, runs[1].path, "the second run").has_value());
  second.checkpoint.dir = runs[0].path / "checkpoints";
  leave_a_run_in(runs[0].path);
  EXPECT_NE(error().find(concat(" is in use by the run in ", runs[0].path.string(), ": ")),
            std::string::npos);
  EXPECT_FALSE(lock_checkpoints(named("third"), runs[1].path, "the third run").has_value()) << "of its own";
}

TEST_F(RunFolders, ARunThatNeverBeganLeavesItsNameFree) {
  claim_run_folder(named("mine"), "");
  EXPECT_EQ(claim_run_folder(named("mine"), "").path.filename(), "mine");
}

TEST_F(RunFolders, ARunThatGoesOnIsNotContinued) {
  const RunFolder claimed = claim_run_folder(named("mine", "here"), "");
  leave_a_run_in(claimed.path);
  EXPECT_EQ(error_text([] { claim_run_folder(named("mine", "here"), "latest"); }),
            "[train.folder] run folder here is in use by another process: expected a run that no other "
            "process is writing; wait for that process to end, or set another run.dir");
}

TEST_F(RunFolders, AGivenFolderIsNeverOverwritten) {
  leave_a_run_in(claim_run_folder(named("mine", "here"), "").path);
  EXPECT_EQ(error_text([] { claim_run_folder(named("mine", "here"), ""); }),
            "[train.folder] run.dir = here already holds a run: expected a folder without a run; continue "
            "that run with --resume, or set another run.dir");
  EXPECT_EQ(claim_run_folder(named("mine", "here"), "latest").path, fs::current_path() / "here");
}

TEST_F(RunFolders, AStartAnewKeepsWhatAnEarlierOneLeft) {
  const fs::path run = claim_run_folder(named("mine"), "").path;
  EXPECT_EQ(keep_earlier_start(run), std::nullopt);
  for (const char* expected : {"earlier-1", "earlier-2"}) {
    leave_a_run_in(run);
    fs::create_directory(run / "tensorboard");
    for (const char* name : {"metrics.jsonl", "tensorboard/events", "notes.txt", "logs/rank-0.log"})
      write_file_atomic(run / name, expected);
    EXPECT_EQ(keep_earlier_start(run), run / expected);
    for (const char* name : {"recipe.toml", "metrics.jsonl", "tensorboard"})
      EXPECT_FALSE(fs::exists(run / name)) << name;
    EXPECT_EQ(read_file(run / "notes.txt") + read_file(run / "logs/rank-0.log"), concat(expected, expected));
  }
  EXPECT_EQ(read_file(run / "earlier-1/metrics.jsonl"), "earlier-1");
  EXPECT_EQ(read_file(run / "earlier-2/tensorboard/events"), "earlier-2");
  EXPECT_TRUE(fs::exists(run / "earlier-1/recipe.toml"));
  write_file_atomic(run / "recipe.toml", "x");
  fs::create_symlink("earlier-3", run / "earlier-3");  // to itself: no user may fill that
  EXPECT_EQ(error_text([&] { keep_earlier_start(run); }),
            concat("[train.folder] cannot move files of an earlier start into ", (run / "earlier-3").string(),
                   ": File exists"));
}

/// What a child of this process gets for `recipe`; "error: ..." where it is refused.
std::string claimed_by_a_child(const Recipe& recipe) {
  write_file_atomic("answer", "");
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      const RunFolder folder = claim_run_folder(recipe, "");
      write_file_atomic("answer",
                        folder.path.filename().string() + (folder.lock ? ", locked" : ", not locked"));
    } catch (const UserError& error) {
      write_file_atomic("answer", concat("error: ", error.what()));
    }
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  return read_file("answer");
}

TEST_F(RunFolders, AVariableNamesItLikeTheKey) {
  ::setenv("TESSERA_RUN_DIR", "chosen", 1);
  {
    const RunFolder claimed = claim_run_folder(named("mine", "here"), "");
    EXPECT_EQ(claimed.path, fs::current_path() / "chosen");
    EXPECT_TRUE(claimed.lock);
    EXPECT_EQ(claimed_by_a_child(named("mine")),
              "error: [train.folder] run folder chosen is in use by another process: expected a run that no "
              "other process is writing; wait for that process to end, or set another run.dir");
    leave_a_run_in(claimed.path);
  }
  EXPECT_EQ(error_text([] { claim_run_folder(named("mine", "here"), ""); }),
            "[train.folder] TESSERA_RUN_DIR = chosen already holds a run: expected a folder without a run; "
            "continue that run with --resume, or set another TESSERA_RUN_DIR");
  EXPECT_TRUE(claim_run_folder(named("mine", "here"), "latest").lock);
  ::unsetenv("TESSERA_RUN_DIR");
}

TEST_F(RunFolders, TheChildrenOfItsHolderUseIt) {
  const RunFolder claimed = claim_run_folder(named("mine", "here"), "");
  leave_a_run_in(claimed.path);
  share_with_children(claimed);
  EXPECT_EQ(claimed_by_a_child(named("mine")), "here, not locked");
  ::setenv("TESSERA_RUN_HOLDER", "1", 1);  // somebody else's: the variables came by another way
  EXPECT_TRUE(claimed_by_a_child(named("mine")).find("is in use") != std::string::npos);
  ::unsetenv("TESSERA_RUN_HOLDER");
  ::unsetenv("TESSERA_RUN_LOCK");
  ::unsetenv("TESSERA_RUN_DIR");
}

// Another run takes the folder after rm -rf: neither a rank that starts again nor a failed start touches it.
TEST_F(RunFolders, WhatIsRemovedOrReplacedIsNoLongerItsHolders) {
  const fs::path path = fs::current_path() / "here";
  const std::string lost =
      concat("[train.run_folder] ", path.string(),
             " was removed or replaced while this run wrote into it: expected the folder "
             "to stay until the run ends; nothing more was written there; start the run "
             "again");
  const RunFolder first = claim_run_folder(named("mine", "here"), "");
  ASSERT_TRUE(first.locked);
  EXPECT_EQ(folder_fault(first.path, *first.locked), "");
  share_with_children(first);
  fs::remove_all("here");
  EXPECT_EQ(folder_fault(first.path, *first.locked), lost);
  EXPECT_EQ(claimed_by_a_child(named("mine")), "error: " + lost);
  EXPECT_FALSE(fs::exists("here"));
  ::unsetenv("TESSERA_RUN_DIR");
  const RunFolder second = claim_run_folder(named("mine", "here"), "");
  EXPECT_EQ(folder_fault(second.path, *second.locked), "");
  EXPECT_EQ(folder_fault(first.path, *first.locked), lost);
  discard_run_folder(first);
  EXPECT_TRUE(fs::exists("here/.lock") && fs::exists("here/logs"));
  discard_run_folder(second);
  EXPECT_FALSE(fs::exists("here"));
  ::unsetenv("TESSERA_RUN_HOLDER");
  ::unsetenv("TESSERA_RUN_LOCK");
}

TEST_F(RunFolders, CheckpointsThatAreRemovedAreNoLongerTheRuns) {
  Recipe recipe = named("mine", "here");
  recipe.checkpoint.dir = fs::current_path() / "saved";
  const RunFolder folder = claim_run_folder(recipe, "");
  const auto lock = lock_checkpoints(recipe, folder.path, "the run");
  ASSERT_TRUE(lock);
  EXPECT_EQ(checkpoints_fault(lock->file()), "");
  fs::remove_all("saved");
  EXPECT_TRUE(checkpoints_fault(lock->file())
                  .starts_with(concat("[train.checkpoint_dir] the folder of checkpoints ",
                                      (fs::current_path() / "saved").string(), " was removed or replaced")));
  fs::create_directory("saved");
  write_file_atomic("saved/.lock", "another run\n");
  EXPECT_NE(checkpoints_fault(lock->file()), "");
}

TEST_F(RunFolders, WhatCannotBeLookedIntoHoldsPerhapsARun) {
  fs::create_directory("runs");
  fs::create_symlink("mine", fs::path("runs") / "mine");  // to itself: no user may fill that
  EXPECT_EQ(error_text([] { claim_run_folder(named("mine"), ""); }),
            "[train.folder] cannot look into run folder runs/mine: Too many levels of symbolic links");
}

TEST_F(RunFolders, WhatCannotBeCreatedIsNamed) {
  write_file_atomic("file", "x");
  EXPECT_EQ(error_text([] { claim_run_folder(named("mine", "file/run"), ""); }),
            "[train.folder] cannot create run folder file/run: Not a directory");
}

}  // namespace
}  // namespace tessera::recipe
