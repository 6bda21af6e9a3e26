// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <span>

#include "sample_state.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/stored_checkpoint.h"
#include "tessera/checkpoint/tools.h"

namespace tessera::checkpoint {
namespace {
using namespace testing;
namespace fs = std::filesystem;

class Reshard : public ::testing::TestWithParam<std::tuple<int64_t, int64_t>> {};

// N ranks save, M and then 1 have it; every byte of parameters and optimizer state stays.
TEST_P(Reshard, ToAnyRanksAndBackIsBitwise) {
  const auto [saved, wanted] = GetParam();
  const TemporaryFolder folder("tessera-reshard");
  save_sample({.folder = folder.path() / "a"}, 12, saved, 3);
  StoredCheckpoint source(folder.path() / "a" / "step_00000012");
  const auto resharded = reshard(source, folder.path() / "b", wanted);
  EXPECT_EQ(resharded, folder.path() / "b" / "step_00000012");
  EXPECT_EQ(names_in(resharded).size(), static_cast<size_t>(wanted) + 1);
  EXPECT_EQ(verify(resharded), Names());
  for (int64_t world = 1; world <= 4; ++world) EXPECT_EQ(wrong_bytes(resharded, world, 3), 0) << world;

  StoredCheckpoint again(resharded);
  const auto one = reshard(again, folder.path() / "c", 1);
  StoredCheckpoint first(folder.path() / "a" / "step_00000012");
  const auto direct = reshard(first, folder.path() / "d", 1);
  EXPECT_EQ(read_file(one / "shard-00000-of-00001.safetensors"),
            read_file(direct / "shard-00000-of-00001.safetensors"));
  EXPECT_EQ(read_file(one / "manifest.json"), read_file(direct / "manifest.json"));
  EXPECT_EQ(read_manifest(one).progress.recipe_toml, at_step(12).recipe_toml);
}
INSTANTIATE_TEST_SUITE_P(Ranks, Reshard,
                         ::testing::Combine(::testing::Values(1, 2, 3), ::testing::Values(1, 2, 5)));

/// Its values cannot be read, as those of a file that is cut off.
class UnreadableSource final : public TensorSource {
 public:
  const std::vector<Manifest::Tensor>& tensors() const override { return tensors_; }
  void read(size_t, int64_t, std::span<std::byte>) override {
    user_error({.where = "test", .problem = "it cannot be read"});
  }
  const Progress& progress() const override { return progress_; }

 private:
  std::vector<Manifest::Tensor> tensors_ = {{"param/weight", "F32", {4}}};
  Progress progress_ = at_step(1);
};

TEST(FailingReshard, LeavesNoFolderBehind) {
  const TemporaryFolder folder("tessera-checkpoint");
  UnreadableSource source;
  EXPECT_EQ(error_text([&] { reshard(source, folder.path() / "new/checkpoints", 1); }),
            "[test] it cannot be read");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// What reshard writes for N ranks is what N ranks with equal shards save.
TEST(ReshardFiles, AreThoseOfASave) {
  const TemporaryFolder folder("tessera-reshard");
  save_sample({.folder = folder.path() / "a"}, 1, 3);
  save_sample({.folder = folder.path() / "b"}, 1, 2);
  StoredCheckpoint source(folder.path() / "a" / "step_00000001");
  const auto made = reshard(source, folder.path() / "c", 2);
  for (const auto& name : names_in(made)) {
    EXPECT_EQ(read_file(made / name), read_file(folder.path() / "b" / "step_00000001" / name)) << name;
  }
}

TEST(ReshardFiles, AreWrittenWholeOrNotAtAll) {
  const TemporaryFolder folder("tessera-reshard");
  save_sample({.folder = folder.path() / "a"}, 1, 2);
  save_sample({.folder = folder.path() / "b"}, 3, 2, 7);
  const auto checkpoint = folder.path() / "a" / "step_00000001";
  const auto shard = checkpoint / "shard-00001-of-00002.safetensors";
  const std::string sound = read_file(shard);
  std::ofstream(shard, std::ios::binary) << sound.substr(0, sound.size() - 1) + 'x';
  StoredCheckpoint damaged(checkpoint);
  EXPECT_NE(error_text([&] { reshard(damaged, folder.path() / "b", 1); }).find("has the checksum "),
            std::string::npos);
  EXPECT_EQ(names_in(folder.path() / "b"), Names({"step_00000003"}));
  std::ofstream(shard, std::ios::binary) << sound;
  StoredCheckpoint source(checkpoint);
  reshard(source, folder.path() / "b", 1);
  EXPECT_EQ(names_in(folder.path() / "b"), Names({"step_00000001", "step_00000003"}));
  EXPECT_EQ(wrong_bytes(folder.path() / "b" / "step_00000001", 2, 0), 0);
  EXPECT_EQ(wrong_bytes(folder.path() / "b" / "step_00000003", 1, 7), 0);
}

TEST(ReshardFiles, Errors) {
  const TemporaryFolder folder("tessera-reshard");
  save_sample({.folder = folder.path()}, 1, 2);
  StoredCheckpoint source(folder.path() / "step_00000001");
  EXPECT_EQ(error_text([&] { reshard(source, folder.path() / "x", 0); }),
            "[checkpoint.reshard] the number of ranks is 0: expected 1 to 99999");
  EXPECT_EQ(error_text([&] { reshard(source, folder.path() / "step_00000001", 1); }),
            concat("[checkpoint.reshard] ", (folder.path() / "step_00000001").string(),
                   " is a checkpoint: expected a folder of checkpoints to write into; name another folder"));
  reshard(source, folder.path() / "b", 1);
  EXPECT_EQ(error_text([&] { reshard(source, folder.path() / "b", 2); }),
            concat("[checkpoint.reshard] ", (folder.path() / "b").string(),
                   " already has a checkpoint of step 1; move it away, or name another folder"));
  EXPECT_EQ(names_in(folder.path() / "b" / "step_00000001").size(), 2U) << "the one of one rank";
  write_file_atomic(folder.path() / "file", "");
  EXPECT_TRUE(error_text([&] {
                reshard(source, folder.path() / "file", 1);
              }).starts_with("[file.create] cannot create " + (folder.path() / "file").string()));
}

TEST(Verify, AFileWithMoreThanWasPlannedIsNamed) {
  const TemporaryFolder folder("tessera-verify");
  save_sample({.folder = folder.path()}, 1, 1);
  const auto checkpoint = folder.path() / "step_00000001";
  auto text = read_file(checkpoint / "manifest.json");
  // A manifest that forgets its last tensor, with its checksum put right.
  const size_t at = text.find(",\n{\"name\":\"mask\""), end = text.find("],\n\"xxh3\"", at);
  ASSERT_NE(at, std::string::npos);
  text.erase(at, end - at);
  const auto stored = parse_manifest(text, "changed");
  write_file_atomic(checkpoint / "manifest.json", manifest_text(stored));
  EXPECT_EQ(verify(checkpoint),
            Names({"[checkpoint.shard] shard-00000-of-00001.safetensors has 8 tensors in its header (" +
                   checkpoint.string() +
                   "): expected 7 tensors; there is no other complete checkpoint beside it"}));
}

// A folder of checkpoints, one that is reached through a run's folder, and that folder itself.
TEST(ReshardInto, TheFolderOfARunThatGoesOnIsRefused) {
  const TemporaryFolder folder("tessera-reshard");
  const fs::path run = folder.path() / "run", ck = folder.path() / "ck", own = folder.path() / "own";
  save_sample({.folder = folder.path() / "a"}, 12);
  StoredCheckpoint source(folder.path() / "a" / "step_00000012");
  fs::create_directories(run);
  fs::create_directories(ck);
  fs::create_directories(own / "checkpoints");
  fs::create_directory_symlink(ck, run / "checkpoints");
  const auto refused = [&](const fs::path& output) {
    const std::string text = error_text([&] { reshard(source, output, 1); });
    EXPECT_NE(text.find("is in use: the run that saves into it holds "), std::string::npos) << text;
  };
  {
    const auto lock = FileLock::try_take(ck / ".lock");
    refused(ck);
    refused(run / "checkpoints");
  }
  {
    const auto lock = FileLock::try_take(run / ".lock");
    refused(run / "checkpoints");
  }
  {
    const auto lock = FileLock::try_take(own / ".lock");
    refused(own / "checkpoints");
  }
  EXPECT_EQ(reshard(source, run / "checkpoints", 1), run / "checkpoints" / "step_00000012");
  EXPECT_FALSE(FileLock::is_held(ck / ".lock"));
  EXPECT_EQ(reshard(source, own / "checkpoints", 1), own / "checkpoints" / "step_00000012");
}

}  // namespace
}  // namespace tessera::checkpoint
