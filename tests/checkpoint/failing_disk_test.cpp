// SPDX-License-Identifier: Apache-2.0
// A save that fails on one rank or on all: the same error everywhere, nothing older touched.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <optional>

#include "sample_state.h"
#include "tessera/base/file.h"

namespace tessera::checkpoint {
namespace {
using namespace testing;
namespace fs = std::filesystem;

const Tensors kLarge = {{"param/large", "F32", {1 << 20}}};  // 4 MiB

void expect_step_1_alone_and_sound(const fs::path& folder) {
  EXPECT_EQ(names_in(folder), Names({"step_00000001"}));
  EXPECT_EQ(verify(folder / "step_00000001"), Names());
  EXPECT_EQ(wrong_bytes(folder / "step_00000001", 2, 0), 0);
}

TEST(FailingSave, AFullDiskLosesNothing) {
  const TemporaryFolder folder("tessera-checkpoint");
  if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=2m") != 0) {
    GTEST_SKIP() << "needs the right to mount a small tmpfs: " << std::strerror(errno);
  }
  const SaveOptions options{.folder = folder.path()};
  save_sample(options, 1, 2);
  const auto errors = save_ranks(options, kLarge, 2, 2, 0);
  EXPECT_NE(
      errors[0].find("failed: [file.write] cannot write " + (folder.path() / "step_00000002.tmp").string()),
      std::string::npos);
  EXPECT_NE(errors[0].find("No space left on device; free some space"), std::string::npos);
  EXPECT_TRUE(errors[0].ends_with("; step_00000002 was not saved; older checkpoints are untouched"));
  EXPECT_EQ(errors[1], errors[0]);
  expect_step_1_alone_and_sound(folder.path());
  // The same step saved again: the old one stays.
  EXPECT_NE(save_ranks(options, kLarge, 1, 2, 0)[0].find("No space left"), std::string::npos);
  expect_step_1_alone_and_sound(folder.path());
  ::umount2(folder.path().c_str(), MNT_DETACH);
}

// Files may not grow beyond 64 KiB: rank 1's shard does, rank 0's does not.
TEST(FailingSave, OneRankThatCannotWriteIsNamedOnAll) {
  const TemporaryFolder folder("tessera-checkpoint");
  const SaveOptions options{.folder = folder.path()};
  save_sample(options, 1, 2);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{.rlim_cur = 64 << 10, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto errors = run_ranks(3, [&](const Ranks& ranks) {
    RankState state;
    state.add(kLarge[0], ranks.rank == 0 ? 0 : 100, ranks.rank == 0 ? 100 : kLarge[0].shape[0]);
    save(options, state.shards, at_step(2), ranks);
  });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  for (const auto& error : errors) {
    EXPECT_EQ(error,
              concat("[checkpoint.save] step_00000002 could not be written: rank 1 of 3 failed: [file.write] "
                     "cannot write ",
                     (folder.path() / "step_00000002.tmp" / "shard-00001-of-00003.safetensors").string(),
                     ": File too large; step_00000002 was not saved; older checkpoints are untouched"));
  }
  expect_step_1_alone_and_sound(folder.path());
}

// Whatever a save was doing when another run took the folder: from then on it changes nothing there.
TEST(FailingSave, AFolderThatIsLostStaysAsItIs) {
  const TemporaryFolder folder("tessera-checkpoint");
  int64_t lost_after = 0;  // calls of the check
  for (bool saved = false; !saved; ++lost_after) {
    const fs::path at = folder.path() / std::to_string(lost_after);
    save_sample({.folder = at, .keep = 1}, 1);
    int64_t calls = 0;
    std::optional<Names> when_lost;
    SaveOptions options{.folder = at, .keep = 1};
    options.check_folder = [&] {
      if (calls++ < lost_after) return;
      if (!when_lost) when_lost = names_in(at);
      user_error({.where = "test", .problem = "the folder is lost"});
    };
    const std::string error = save_ranks(options, sample_tensors(), 2, 1, 0)[0];
    saved = error.empty();
    if (saved) {
      EXPECT_EQ(names_in(at), Names({"step_00000002"}));
    } else {
      EXPECT_NE(error.find("failed: [test] the folder is lost; step_00000002 "), std::string::npos) << error;
      EXPECT_EQ(names_in(at), when_lost) << "after " << lost_after << " calls";
    }
  }
  EXPECT_GT(lost_after, 4);
}

TEST(FailingSave, AFolderThatCannotBeMade) {
  const TemporaryFolder folder("tessera-checkpoint");
  write_file_atomic(folder.path() / "file", "");
  const auto errors = save_ranks({.folder = folder.path() / "file"}, sample_tensors(), 1, 2, 0);
  EXPECT_EQ(errors[1], errors[0]);
  EXPECT_NE(errors[0].find("rank 0 of 2 failed: [file.create] cannot create "), std::string::npos)
      << errors[0];
}

// Something in the way of rank 0's last steps and of several ranks' shards.
TEST(FailingSave, FailuresAfterTheShardsAndOnSeveralRanks) {
  const TemporaryFolder folder("tessera-checkpoint");
  save_sample({.folder = folder.path()}, 1, 2);
  const auto save_with = [&](const std::vector<fs::path>& in_the_way) {
    return run_ranks(3, [&](const Ranks& ranks) {
      auto state = part_of(sample_tensors(), ranks.rank, ranks.world);
      Ranks meddling = ranks;
      meddling.all_gather = [&](const std::string& text) {
        auto texts = ranks.all_gather(text);
        std::error_code ignored;
        if (ranks.rank == 0) {
          for (const auto& path : in_the_way) fs::create_directory(folder.path() / path, ignored);
        }
        ranks.all_gather("");
        return texts;
      };
      save({.folder = folder.path()}, state.shards, at_step(2), meddling);
    });
  };
  auto errors = save_with({"step_00000002.tmp/manifest.json"});
  EXPECT_NE(errors[2].find("rank 0 of 3 failed: [file.write] cannot write "), std::string::npos) << errors[2];
  EXPECT_NE(errors[2].find("manifest.json: Is a directory"), std::string::npos) << errors[2];
  expect_step_1_alone_and_sound(folder.path());
  errors = save_with({"step_00000002.tmp/shard-00001-of-00003.safetensors",
                      "step_00000002.tmp/shard-00002-of-00003.safetensors"});
  EXPECT_NE(errors[0].find("rank 1 of 3 failed: [file.create] cannot create "), std::string::npos)
      << errors[0];
  EXPECT_NE(errors[0].find(" (2 ranks failed in all); step_00000002 was not saved"), std::string::npos)
      << errors[0];
  EXPECT_EQ(errors[0], errors[2]);
  expect_step_1_alone_and_sound(folder.path());
}

TEST(FailingSave, ABestThatCannotBeMarkedIsToldApart) {
  const TemporaryFolder folder("tessera-checkpoint");
  fs::create_directory(folder.path() / "best.json");
  const auto errors = run_ranks(2, [&](const Ranks& ranks) {
    auto state = part_of(sample_tensors(), ranks.rank, 2);
    state.fill(0);
    save({.folder = folder.path(), .best = true}, state.shards, at_step(4), ranks);
  });
  EXPECT_TRUE(errors[1].ends_with("; step_00000004 is saved, but not marked as best")) << errors[1];
  EXPECT_EQ(wrong_bytes(folder.path() / "step_00000004", 1, 0), 0);
}

}  // namespace
}  // namespace tessera::checkpoint
