// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>

#include "sample_state.h"
#include "tessera/base/file.h"

namespace tessera::checkpoint {
namespace {
using namespace testing;
namespace fs = std::filesystem;

class AnyRanks : public ::testing::TestWithParam<int64_t> {};

TEST_P(AnyRanks, AnyNumberLoadsWhatAnySaved) {
  const TemporaryFolder folder("tessera-checkpoint");
  save_sample({.folder = folder.path()}, 12, GetParam());
  const auto checkpoint = folder.path() / "step_00000012";
  EXPECT_EQ(verify(checkpoint), std::vector<std::string>());
  for (int64_t world = 1; world <= 4; ++world) {
    EXPECT_EQ(wrong_bytes(checkpoint, world, 0), 0) << world;
    EXPECT_EQ(wrong_bytes(checkpoint, world, 0, false), 0) << world;
  }
}
INSTANTIATE_TEST_SUITE_P(SavedBy, AnyRanks, ::testing::Values(1, 2, 3, 4));

TEST(Save, ReturnsThePathAndLeavesNothingElse) {
  const TemporaryFolder folder("tessera-checkpoint");
  auto state = part_of(sample_tensors(), 0, 1);
  const fs::path nested = folder.path() / "run" / "checkpoints";
  EXPECT_EQ(save({.folder = nested}, state.shards, at_step(7), {}), nested / "step_00000007");
  EXPECT_EQ(names_in(nested), Names({"step_00000007"}));
  EXPECT_EQ(names_in(nested / "step_00000007"), Names({"manifest.json", "shard-00000-of-00001.safetensors"}));
}

TEST(Save, KeepsProgressAndTensors) {
  const TemporaryFolder folder("tessera-checkpoint");
  save_sample({.folder = folder.path()}, 12, 2);
  const auto manifest = read_manifest(folder.path() / "step_00000012");
  EXPECT_EQ(manifest.schema, 2);
  EXPECT_EQ(manifest.world, 2);
  EXPECT_EQ(manifest.progress.step, 12);
  EXPECT_EQ(manifest.progress.json, at_step(12).json);
  EXPECT_EQ(manifest.progress.recipe_toml, at_step(12).recipe_toml);
  EXPECT_EQ(manifest.progress.plan_json, at_step(12).plan_json);
  EXPECT_EQ(manifest.progress.model_json, at_step(12).model_json);
  ASSERT_EQ(manifest.tensors.size(), sample_tensors().size());
  for (size_t i = 0; i < manifest.tensors.size(); ++i) {
    EXPECT_EQ(manifest.tensors[i].name, sample_tensors()[i].name);
    EXPECT_EQ(manifest.tensors[i].dtype, sample_tensors()[i].dtype);
    EXPECT_EQ(manifest.tensors[i].shape, sample_tensors()[i].shape);
  }
}

TEST(Save, EmptyTextsAndEmptyStateComeBackEmpty) {
  const TemporaryFolder folder("tessera-checkpoint");
  const auto path = save({.folder = folder.path()}, {}, Progress(), {});
  const auto manifest = read_manifest(path);
  EXPECT_EQ(manifest.progress.json, "{}");
  EXPECT_EQ(manifest.progress.recipe_toml + manifest.progress.plan_json + manifest.progress.model_json, "");
  EXPECT_TRUE(manifest.tensors.empty());
  EXPECT_TRUE(verify(path).empty());
}

TEST(Save, WhatRanksHoldAlikeIsWrittenOnce) {
  const TemporaryFolder folder("tessera-checkpoint");
  const auto errors = run_ranks(4, [&](const Ranks& ranks) {  // two replicas of two shards
    auto state = part_of(sample_tensors(), ranks.rank % 2, 2);
    state.fill(0);
    save({.folder = folder.path()}, state.shards, at_step(1), ranks);
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
  const auto checkpoint = folder.path() / "step_00000001";
  EXPECT_EQ(wrong_bytes(checkpoint, 3, 0), 0);
  const formats::SafetensorsReader replica(checkpoint / "shard-00003-of-00004.safetensors");
  EXPECT_TRUE(replica.entries().empty());
}

TEST(Save, SeveralSlicesOfOneTensorOnARank) {
  const TemporaryFolder folder("tessera-checkpoint");
  const Manifest::Tensor tensor{"w", "I16", {4, 5}};
  const auto errors = run_ranks(2, [&](const Ranks& ranks) {
    RankState state;
    for (int64_t i = ranks.rank; i < 20; i += 2) state.add(tensor, i, i + 1);  // every second element
    state.fill(5);
    save({.folder = folder.path()}, state.shards, at_step(1), ranks);
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
  EXPECT_EQ(wrong_bytes(folder.path() / "step_00000001", 3, 5, true, {tensor}), 0);
}

TEST(Save, SlicesThatDoNotCoverATensorAreOurFault) {
  const TemporaryFolder folder("tessera-checkpoint");
  RankState state;
  state.add({"w", "F32", {10}}, 0, 9);
  try {
    save({.folder = folder.path()}, state.shards, at_step(1), {});
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("tensor w: the regions cover 9 of 10 elements"),
              std::string::npos);
  }
  EXPECT_EQ(names_in(folder.path()), Names());
}

TEST(Load, OverlappingSlicesAndSomeTensorsOnly) {
  const TemporaryFolder folder("tessera-checkpoint");
  save_sample({.folder = folder.path()}, 1, 3);
  const auto tensor = sample_tensors()[1];
  RankState state;
  state.add(tensor, 10, 80);
  state.add(tensor, 0, 91);
  state.add(tensor, 30, 31);
  state.add(tensor, 5, 5);
  for (const bool verified : {true, false}) {
    state.fill(99);
    load(folder.path() / "step_00000001", state.shards, verified);
    EXPECT_EQ(state.wrong(0), 0);
  }
}

TEST(Load, ReadsPiecesLargerThanItsBuffer) {
  const TemporaryFolder folder("tessera-checkpoint");
  const Tensors tensors = {{"a", "U8", {(3 << 20) + 7}}, {"b", "F32", {(1 << 20) + 1}}};
  for (const auto& error : save_ranks({.folder = folder.path()}, tensors, 1, 2, 4)) EXPECT_EQ(error, "");
  EXPECT_EQ(wrong_bytes(folder.path() / "step_00000001", 3, 4, true, tensors), 0);
}

// A shard file whose unwanted bytes are gone can still be loaded without verifying: only ranges are read.
TEST(Load, WithoutVerifyingOnlyWantedBytesAreRead) {
  const TemporaryFolder folder("tessera-checkpoint");
  save_sample({.folder = folder.path()}, 1, 1);
  const auto shard = folder.path() / "step_00000001" / "shard-00000-of-00001.safetensors";
  std::string bytes = read_file(shard);
  const formats::SafetensorsReader reader(shard);
  const auto unwanted = reader.find("adamw.exp_avg/blocks.0.qkv.weight");
  ASSERT_NE(unwanted, nullptr);
  const size_t buffer = bytes.size() - reader.entries().back().end;
  bytes[buffer + unwanted->begin] ^= 1;
  std::ofstream(shard, std::ios::binary) << bytes;
  EXPECT_EQ(wrong_bytes(shard.parent_path(), 1, 0, false, {sample_tensors()[1]}), 0);
  EXPECT_NE(error_text([&] {
              wrong_bytes(shard.parent_path(), 1, 0, true, {sample_tensors()[1]});
            }).find("has the checksum "),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::checkpoint
