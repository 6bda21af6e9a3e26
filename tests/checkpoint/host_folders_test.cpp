// SPDX-License-Identifier: Apache-2.0
// Ranks that do not see each other's files: every host has a folder of its own.
#include <gtest/gtest.h>

#include "sample_state.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/stored_checkpoint.h"
#include "tessera/checkpoint/tools.h"

namespace tessera::checkpoint {
namespace {
using namespace testing;
namespace fs = std::filesystem;

// Four ranks on two hosts: 0 and 1 see `a`, 2 and 3 see `b`.
class HostFolders : public ::testing::Test {
 protected:
  fs::path folder_of(int64_t rank) const { return rank < 2 ? a : b; }
  std::vector<std::string> run(const std::function<void(const Ranks&, const fs::path&)>& work) {
    return run_ranks(4, [&](const Ranks& ranks) {
      Ranks with_host = ranks;
      with_host.host = ranks.rank < 2 ? "nodea" : "nodeb";
      work(with_host, folder_of(ranks.rank));
    });
  }
  std::vector<std::string> save_all(int64_t step, int64_t generation = 0, int64_t keep = 3) {
    return run([&](const Ranks& ranks, const fs::path& folder) {
      auto state = part_of(sample_tensors(), ranks.rank, 4);
      state.fill(generation);
      Progress progress = at_step(step);
      progress.json = concat("{\"seconds\":", ranks.rank, '}');  // not alike on all ranks
      EXPECT_EQ(save({.folder = folder, .keep = keep}, state.shards, progress, ranks),
                folder / names_of(step));
    });
  }
  static std::string names_of(int64_t step) { return concat("step_0000000", step); }
  /// All of a step in one folder.
  fs::path reshard_of(int64_t step) const {
    fs::remove_all(root.path() / "one");  // no step is ever replaced
    StoredCheckpoint source(both(step));
    return reshard(source, root.path() / "one", 1);
  }
  Folders both(int64_t step) const { return Folders({a / names_of(step), b / names_of(step)}); }

  const TemporaryFolder root{"tessera-hosts"};
  const fs::path a = root.path() / "a" / "checkpoints", b = root.path() / "b" / "checkpoints";
};
const Names kNoErrors(4, "");

TEST_F(HostFolders, EveryFolderHasItsShardsAndTheWholeManifest) {
  EXPECT_EQ(save_all(1), kNoErrors);
  EXPECT_EQ(names_in(a), Names({"step_00000001"}));
  EXPECT_EQ(names_in(a / "step_00000001"),
            Names({"manifest.json", "shard-00000-of-00004.safetensors", "shard-00001-of-00004.safetensors"}));
  EXPECT_EQ(names_in(b / "step_00000001"),
            Names({"manifest.json", "shard-00002-of-00004.safetensors", "shard-00003-of-00004.safetensors"}));
  EXPECT_EQ(read_file(a / "step_00000001/manifest.json"), read_file(b / "step_00000001/manifest.json"));
  EXPECT_EQ(read_manifest(both(1)).progress.json, R"({"seconds":0})") << "rank 0's";
  const auto inspection = inspect(both(1));
  EXPECT_EQ(inspection.stored.shards[1].host, "nodea");
  EXPECT_EQ(inspection.stored.shards[2].host, "nodeb");
  EXPECT_EQ(inspection.files[3].folder, b / "step_00000001");
}

TEST_F(HostFolders, EachRankLoadsFromWhatItSees) {
  EXPECT_EQ(save_all(1), kNoErrors);
  const auto errors = run([&](const Ranks& ranks, const fs::path& folder) {
    const auto found = find(folder, "latest", ranks);
    ASSERT_EQ(found, folder / "step_00000001");
    auto state = part_of(sample_tensors(), ranks.rank, 4);
    load(*found, state.shards);
    EXPECT_EQ(state.wrong(0), 0);
  });
  EXPECT_EQ(errors, kNoErrors);
}

TEST_F(HostFolders, AMissingPartIsNamedByRankAndHost) {
  EXPECT_EQ(save_all(1), kNoErrors);
  auto state = part_of(sample_tensors(), 0, 1);
  const auto error = error_text([&] { load(a / "step_00000001", state.shards); });
  EXPECT_EQ(error, concat("[checkpoint.shard] shard-00002-of-00004.safetensors is missing (",
                          (a / "step_00000001").string(),
                          "): rank 2 wrote it on host nodeb; give the folders of all hosts; tessera "
                          "checkpoint reshard joins them in one folder"));
  EXPECT_EQ(verify(a / "step_00000001").size(), 2U);
  EXPECT_EQ(verify(both(1)), Names());
  load(both(1), state.shards);
  EXPECT_EQ(state.wrong(0), 0);
}

TEST_F(HostFolders, ReshardMakesOneFolderForAnyRanks) {
  EXPECT_EQ(save_all(1), kNoErrors);
  StoredCheckpoint source(both(1));
  const auto one = reshard(source, root.path() / "one", 3);
  EXPECT_EQ(verify(one), Names());
  EXPECT_EQ(wrong_bytes(one, 2, 0), 0);
}

// Two replicas of two shards, a replica on each host: each folder alone has all.
TEST_F(HostFolders, WhatRanksOfTwoHostsHoldAlikeIsInBothFolders) {
  const auto errors = run([&](const Ranks& ranks, const fs::path& folder) {
    auto state = part_of(sample_tensors(), ranks.rank % 2, 2);
    state.fill(0);
    save({.folder = folder}, state.shards, at_step(1), ranks);
  });
  EXPECT_EQ(errors, kNoErrors);
  for (const auto& folder : {a, b}) {
    EXPECT_EQ(wrong_bytes(folder / "step_00000001", 3, 0), 0) << folder;
    EXPECT_EQ(verify(folder / "step_00000001").size(), 2U) << "the other host's files are not there";
  }
  EXPECT_EQ(verify(both(1)), Names());
  const auto text = read_file(a / "step_00000001/manifest.json");
  EXPECT_NE(text.find(R"("regions":[[0,0,46],[1,46,91]],"copies":[[2,0,46],[3,46,91]])"), std::string::npos)
      << text;
  EXPECT_EQ(manifest_text(parse_manifest(text, "again")), text);
}

TEST_F(HostFolders, LatestIsTheNewestThatEveryRankSees) {
  EXPECT_EQ(save_all(1), kNoErrors);
  EXPECT_EQ(save_all(2, 5), kNoErrors);
  fs::remove_all(b / "step_00000002");  // host b died before its rename
  const auto errors = run([&](const Ranks& ranks, const fs::path& folder) {
    EXPECT_EQ(find(folder, "latest", ranks), folder / "step_00000001");
  });
  EXPECT_EQ(errors, kNoErrors);
  EXPECT_EQ(find_parts({root.path() / "a", root.path() / "b"}, "latest").paths, both(1).paths);
}

TEST_F(HostFolders, ARankThatSeesNothingIsNamed) {
  EXPECT_EQ(save_all(1), kNoErrors);
  fs::remove_all(b);
  const auto look = [&](const std::string& which) {
    return run([&](const Ranks& ranks, const fs::path& folder) { find(folder, which, ranks); });
  };
  auto errors = look("latest");
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(
        errors[rank],
        concat("[checkpoint.find] rank 2 of 4 on host nodeb sees no step_00000001 in ",
               folder_of(static_cast<int64_t>(rank)).string(),
               ", but rank 0 of 4 on host nodea does: expected a checkpoint that every rank sees; resume on "
               "the hosts that saved it, or join its parts in one folder with tessera checkpoint reshard"));
  }
  errors = look("1");
  EXPECT_NE(errors[0].find("rank 2 of 4 on host nodeb failed: [checkpoint.find] " +
                           (b.string() + " has no checkpoint of step 1")),
            std::string::npos)
      << errors[0];
  EXPECT_EQ(error_text([&] {
              find_parts({a, b}, "latest");
            }),
            concat("[checkpoint.find] ", b.string(),
                   " has no step_00000001, which another of the folders has: expected a step that all "
                   "folders have; give the folders of one run, or name a step with --which"));
  fs::remove_all(a);
  EXPECT_EQ(run([&](const Ranks& ranks, const fs::path& folder) {
              EXPECT_EQ(find(folder, "latest", ranks), std::nullopt);
            }),
            kNoErrors);
}

TEST_F(HostFolders, PartsOfDifferentSavesAreRefused) {
  EXPECT_EQ(save_all(1), kNoErrors);
  fs::rename(b, root.path() / "kept");
  EXPECT_EQ(save_all(1, 7), kNoErrors);
  fs::remove_all(b);
  fs::rename(root.path() / "kept", b);
  const auto errors = run([&](const Ranks& ranks, const fs::path& folder) { find(folder, "1", ranks); });
  EXPECT_EQ(errors[3], concat("[checkpoint.find] ", (b / "step_00000001").string(),
                              " is a different save on rank 2 of 4 on host nodeb than on rank 0 of 4 on host "
                              "nodea: expected the same checkpoint on every rank; move one of them away"));
  EXPECT_EQ(
      verify(both(1)),
      Names({concat("[checkpoint.manifest] the manifest in ", (b / "step_00000001").string(),
                    " differs from that in ", (a / "step_00000001").string(),
                    ": expected folders with parts of one save; give the folders of one step of one run")}));
}

TEST_F(HostFolders, AHostThatCannotCommitTakesTheOthersBack) {
  EXPECT_EQ(save_all(1), kNoErrors);
  EXPECT_EQ(save_all(2), kNoErrors);
  for (const int64_t step : {int64_t{2}, int64_t{3}}) {  // one that is replaced, one that is new
    int gathers = 0;
    const auto errors = run([&](const Ranks& ranks, const fs::path& folder) {
      auto state = part_of(sample_tensors(), ranks.rank, 4);
      state.fill(9);
      Ranks meddling = ranks;
      meddling.all_gather = [&](const std::string& text) {
        auto texts = ranks.all_gather(text);
        const auto temporary = b / (names_of(step) + ".tmp");
        if (ranks.rank == 0 && ++gathers == 7)
          fs::remove_all(temporary);  // its manifest was written: now rename
        ranks.all_gather("");
        return texts;
      };
      save({.folder = folder}, state.shards, at_step(step), meddling);
    });
    for (const auto& error : errors) {
      EXPECT_TRUE(error.starts_with(
          "[checkpoint.save] " + names_of(step) +
          " could not be written: rank 2 of 4 on host nodeb failed: [checkpoint.commit] cannot rename "))
          << error;
    }
    EXPECT_EQ(names_in(a), Names({"step_00000001", "step_00000002"}));
    EXPECT_EQ(names_in(b), Names({"step_00000001", "step_00000002"}));
    EXPECT_EQ(verify(both(2)), Names());
    EXPECT_EQ(wrong_bytes(reshard_of(2), 1, 0), 0) << "step 2 is the first save of it";
  }
}

TEST_F(HostFolders, RetentionBestAndSettingAsideHappenInEveryFolder) {
  const auto errors = run([&](const Ranks& ranks, const fs::path& folder) {
    for (int64_t step = 1; step <= 4; ++step) {
      auto state = part_of(sample_tensors(), ranks.rank, 4);
      save({.folder = folder, .keep = 2, .best = step == 1}, state.shards, at_step(step), ranks);
    }
    EXPECT_EQ(find(folder, "best", ranks), folder / "step_00000001");
    set_aside_after(folder, 3, ranks);
  });
  EXPECT_EQ(errors, kNoErrors);
  const Names expected = {"abandoned_step_00000004", "best.json", "step_00000001", "step_00000003"};
  EXPECT_EQ(names_in(a), expected);
  EXPECT_EQ(names_in(b), expected);
}

}  // namespace
}  // namespace tessera::checkpoint
