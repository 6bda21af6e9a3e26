// SPDX-License-Identifier: Apache-2.0
// Checkpoints that are damaged, of another model, or newer than this program.
#include <gtest/gtest.h>

#include <fstream>

#include "sample_state.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/model_json.h"

namespace tessera::checkpoint {
namespace {
using namespace testing;
namespace fs = std::filesystem;

class Damage : public ::testing::Test {
 protected:
  Damage() {
    save_sample({.folder = folder.path()}, 900, 2);
    save_sample({.folder = folder.path()}, 1000, 2);
  }
  std::string load_error(const Tensors& tensors = sample_tensors()) {
    auto state = part_of(tensors, 0, 1);
    return error_text([&] { load(checkpoint, state.shards); });
  }
  static void overwrite(const fs::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  const TemporaryFolder folder{"tessera-checkpoint"};
  const fs::path checkpoint = folder.path() / "step_00001000";
  const fs::path shard = checkpoint / "shard-00001-of-00002.safetensors";
  const fs::path manifest = checkpoint / "manifest.json";
  const std::string where = " (" + checkpoint.string() + ")", advice = "; use step_00000900";
};

TEST_F(Damage, MissingManifest) {
  fs::remove(manifest);
  EXPECT_EQ(load_error(),
            concat("[checkpoint.load] checkpoint ", checkpoint.string(),
                   " is incomplete: it has no manifest.json, so the save did not finish; use step_00000900"));
  EXPECT_EQ(error_text([&] { read_manifest(folder.path() / "none"); }),
            concat("[checkpoint.load] there is no checkpoint folder ", (folder.path() / "none").string()));
  fs::remove_all(folder.path() / "step_00000900");
  EXPECT_NE(
      load_error().find(", so the save did not finish; there is no other complete checkpoint beside it"),
      std::string::npos);
}

TEST_F(Damage, MissingShard) {
  fs::remove(shard);
  const std::string text = "[checkpoint.shard] shard-00001-of-00002.safetensors is missing" + where + advice;
  EXPECT_EQ(load_error(), text);
  EXPECT_EQ(verify(checkpoint), Names({text}));
}

TEST_F(Damage, CutOffShard) {
  const auto size = fs::file_size(shard);
  fs::resize_file(shard, size - 1);
  EXPECT_EQ(load_error(), concat("[checkpoint.shard] shard-00001-of-00002.safetensors has ", size - 1,
                                 " bytes", where, ": expected ", size, " bytes", advice));
}

TEST_F(Damage, AnyFlippedByteOfAShardIsFound) {
  const std::string sound = read_file(shard);
  for (size_t i = 0; i < sound.size(); i += 11) {
    std::string bytes = sound;
    bytes[i] = static_cast<char>(bytes[i] ^ 4);
    overwrite(shard, bytes);
    const auto error = load_error();
    EXPECT_TRUE(error.starts_with("[checkpoint.shard] shard-00001-of-00002.safetensors ")) << i << error;
    EXPECT_TRUE(error.ends_with(advice) && error.find(where) != std::string::npos) << error;
    EXPECT_EQ(verify(checkpoint).size(), 1U);
  }
  std::string bytes = sound;
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  overwrite(shard, bytes);
  EXPECT_NE(load_error().find("shard-00001-of-00002.safetensors has the checksum "), std::string::npos)
      << load_error();
}

TEST_F(Damage, AShardOfAnotherStepIsFound) {
  fs::copy_file(folder.path() / "step_00000900" / shard.filename(), shard,
                fs::copy_options::overwrite_existing);
  EXPECT_NE(load_error(), "no error");
}

TEST_F(Damage, AnyFlippedByteOfTheManifestIsFound) {
  const std::string sound = read_file(manifest);
  for (size_t i = 0; i < sound.size(); i += 3) {
    std::string bytes = sound;
    bytes[i] = static_cast<char>(bytes[i] ^ 1);
    overwrite(manifest, bytes);
    EXPECT_TRUE(load_error().starts_with("[checkpoint.manifest] ")) << i << load_error();
    EXPECT_EQ(verify(checkpoint).size(), 1U);
  }
  std::string bytes = sound;
  bytes[bytes.find("width")] = 'W';
  overwrite(manifest, bytes);
  EXPECT_NE(load_error().find("; the file was changed or damaged; use step_00000900"), std::string::npos);
}

TEST_F(Damage, BrokenManifests) {
  const std::string sound = read_file(manifest);
  overwrite(manifest, sound.substr(0, sound.size() / 2));
  EXPECT_NE(load_error().find("manifest.json is damaged: it is not valid JSON at byte "), std::string::npos);
  overwrite(manifest, "");
  EXPECT_EQ(load_error(), concat("[checkpoint.manifest] ", manifest.string(),
                                 " is damaged: it is not valid JSON at byte 1"));
  overwrite(manifest, "{\"schema\": 3}");
  EXPECT_EQ(load_error(), concat("[checkpoint.manifest] ", manifest.string(),
                                 " has schema 3: expected schema 2 or older; it was saved by a newer version "
                                 "of this program; use that version"));
  overwrite(manifest, sound.substr(0, sound.rfind(",\n\"xxh3\"")) + "}\n");
  EXPECT_EQ(load_error(), concat("[checkpoint.manifest] ", manifest.string(),
                                 " is damaged: its last line has no checksum"));
}

TEST_F(Damage, AnotherModel) {
  Tensors other = sample_tensors();
  other[0].shape = {1, 1, 6};
  other[1].shape = {13, 7};
  other[4].name = "param/full";
  other[7].shape = {9};
  EXPECT_EQ(
      load_error(other),
      concat("[checkpoint.load] checkpoint ", checkpoint.string(),
             " does not match this model: param/cls_token is [1, 1, 5] in the checkpoint, [1, 1, 6] in this "
             "run; param/blocks.0.qkv.weight is [7, 13] in the checkpoint, [13, 7] in this run; param/full "
             "[11] is not in the checkpoint; and 1 more; use the recipe that is saved with the checkpoint"));
}

arch::ModelConfig vit_of_depth(int64_t depth) {
  arch::VitConfig vit;
  vit.width = vit.mlp_width = 32;
  vit.heads = 2;
  vit.depth = depth;
  return vit;
}

// A deeper model's checkpoint has all that a shallower one wants.
TEST(AnotherModel, ADeeperOnesSurplusIsCounted) {
  const std::string two = model_json(vit_of_depth(2));
  EXPECT_EQ(error_text([&] { refuse_surplus(two, vit_of_depth(1), "run/step_00000007"); }),
            "[checkpoint.load] checkpoint run/step_00000007 does not match this model: blocks.1.norm1.weight "
            "[32] is only in the checkpoint; blocks.1.norm1.bias [32] is only in the checkpoint; "
            "blocks.1.attn.qkv.weight [96, 32] is only in the checkpoint; and 9 more; use the recipe that is "
            "saved with the checkpoint");
  EXPECT_NO_THROW(refuse_surplus(two, vit_of_depth(2), "run"));
  for (const char* without : {"", "null", R"({"kind":"mine"})"})
    EXPECT_NO_THROW(refuse_surplus(without, vit_of_depth(2), "run"));
  EXPECT_NO_THROW(refuse_surplus(two, vit_of_depth(3), "run"));  // what is missing, load() itself tells
  auto headless = nlohmann::json::parse(two);
  headless["parameters"] = {{"norm.weight", {32}}, {"temperature", nlohmann::json::array()}};
  EXPECT_EQ(error_text([&] { refuse_surplus(headless.dump(), vit_of_depth(1), "run"); }),
            "[checkpoint.load] checkpoint run does not match this model: temperature [] is only in the "
            "checkpoint; use the recipe that is saved with the checkpoint");
}

TEST_F(Damage, AnotherDtype) {
  Tensors other = sample_tensors();
  other[4].dtype = "F32";
  EXPECT_EQ(load_error(other), concat("[checkpoint.load] checkpoint ", checkpoint.string(),
                                      " has different dtypes: param/half is BF16 in the checkpoint, F32 in "
                                      "this run; use the precision with which it was saved"));
}

}  // namespace
}  // namespace tessera::checkpoint
