// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include "sample_state.h"

namespace tessera::checkpoint {
namespace {
using namespace testing;

std::string manifest_with(const std::string& tensors, const std::string& world = "2") {
  return R"({"schema": 1, "step": 3, "world": )" + world + R"(, "progress": {}, "recipe": "", "plan": null,
    "model": null, "shards": [{"file": "shard-00000-of-00002.safetensors", "bytes": 8, "xxh3": "0"},
    {"file": "shard-00001-of-00002.safetensors", "bytes": 8, "xxh3": "1"}], "tensors": [)" +
         tensors + "]}";
}
std::string tensor_with(const std::string& slices, const std::string& shape = "[2, 3]",
                        const std::string& dtype = "\"F32\"") {
  return R"({"name": "w", "dtype": )" + dtype + R"(, "shape": )" + shape + R"(, "slices": )" + slices + "}";
}

TEST(ManifestText, ComesBackAsItWas) {
  StoredManifest stored;
  stored.manifest = {.schema = 1, .world = 2, .progress = at_step(9), .tensors = {{"w", "F32", {2, 3}}}};
  stored.shards = {{16, "00000000000000aa"}, {8, "00000000000000bb"}};
  stored.pieces = {{{0, 0, 4}, {1, 4, 6}}};
  const std::string text = manifest_text(stored);
  const auto back = parse_manifest(text, "here");
  EXPECT_EQ(manifest_text(back), text);
  EXPECT_EQ(back.shards[1].checksum, "00000000000000bb");
  EXPECT_EQ(back.pieces[0][1].begin, 4);
}

TEST(ManifestText, ProgressMustBeJson) {
  StoredManifest stored;
  stored.shards.resize(1);
  stored.manifest.progress.json = "{oops";
  EXPECT_TRUE(error_text([&] {
                manifest_text(stored);
              }).starts_with("[checkpoint.save] JSON as the run's progress: "));
}

TEST(ParseManifest, SoundOnes) {
  EXPECT_EQ(parse_manifest(manifest_with(tensor_with("[[0, 0, 4], [1, 4, 6]]")), "m").pieces[0].size(), 2U);
  EXPECT_EQ(parse_manifest(manifest_with(tensor_with("[[1, 0, 0]]", "[0, 7]")), "m").pieces[0].size(), 1U);
  EXPECT_EQ(parse_manifest(manifest_with(tensor_with("[[0, 0, 1]]", "[]")), "m").pieces[0][0].end, 1);
}

TEST(ParseManifest, CopiesAreOfSlicesByRank) {
  const auto text = [](const std::string& copies) {
    return manifest_with(tensor_with("[[0, 0, 4], [0, 4, 6]], \"copies\": " + copies));
  };
  const auto stored = parse_manifest(text("[[1, 0, 4]]"), "m");
  EXPECT_EQ(stored.pieces[0][0].copies, std::vector<int64_t>({1}));
  EXPECT_TRUE(stored.pieces[0][1].copies.empty());
  for (const char* wrong :
       {"[[1, 0, 3]]", "[[1, 1, 4]]", "[[2, 0, 4]]", "[[0, 0, 4]]", "[[1, 0, 4], [1, 0, 4]]"}) {
    const auto error = error_text([&] { parse_manifest(text(wrong), "m"); });
    EXPECT_TRUE(error.starts_with("[checkpoint.manifest] copies of slices, by rank: w has [")) << error;
  }
  EXPECT_EQ(error_text([&] { parse_manifest(text("3"), "m"); }),
            "[checkpoint.manifest] copies as a list: found 3 (m; the file is damaged)");
  EXPECT_EQ(error_text([&] { parse_manifest(text("[[1, 0]]"), "m"); }),
            "[checkpoint.manifest] copies [shard, begin, end]: found [1,0] (m; the file is damaged)");
}

TEST(ParseManifest, EveryFaultHasItsLine) {
  const std::string sound = manifest_with(tensor_with("[[0, 0, 6]]"));
  const auto without = [&](const std::string& key) {
    std::string text = sound;
    text.replace(text.find('"' + key + '"') + 1, 1, "_");
    return text;
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[1", "JSON: it stops being JSON at byte 3"},
      {"[]", "a manifest of schema 1: [json.exception."},
      {without("progress"), "key 'progress' not found"},
      {without("xxh3"), "key 'xxh3' not found"},
      {std::string(100, '['), "[checkpoint.manifest] nested at most 64 deep: deeper"},
      {manifest_with("", "3"), "one shard for each of 3 ranks: found 2"},
      {manifest_with("", "-1"), "whole numbers from 0: found -1"},
      {manifest_with("", "1.5"), "whole numbers from 0: found 1.5"},
      {manifest_with("", "18446744073709551615"), "whole numbers from 0: found 18446744073709551615"},
      {manifest_with("7"), "a manifest of schema 1: [json.exception.type_error"},
      {manifest_with(tensor_with("[[0, 0, 4], [1, 5, 6]]")), "slices that follow each other: w has [1,5,6]"},
      {manifest_with(tensor_with("[[0, 0, 4], [1, 3, 6]]")), "slices that follow each other: w has [1,3,6]"},
      {manifest_with(tensor_with("[[0, 0, 0], [1, 0, 6]]")), "slices that follow each other: w has [0,0,0]"},
      {manifest_with(tensor_with("[[2, 0, 6]]")), "slices that follow each other: w has [2,0,6]"},
      {manifest_with(tensor_with("[[0, 0, 5]]")), "slices of all 6 elements: w has 5"},
      {manifest_with(tensor_with("[]", "[0]")), "slices of all 0 elements: w has 0"},
      {manifest_with(tensor_with("[[0, 0]]")), "slices [shard, begin, end]: found [0,0]"},
      {manifest_with(tensor_with("{}")), "slices as a list: found {}"},
      {manifest_with(tensor_with("[]", "[4294967296, 4294967296]")),
       "a size that fits 63 bits: w [4294967296"},
      {manifest_with(tensor_with("[]", "[2305843009213693952]")), "a size that fits 63 bits: w"},
      {manifest_with(tensor_with("[]", "6")), "a shape that is a list: found 6"},
      {manifest_with(tensor_with("[[0, 0, 6]]", "[6]", "\"F33\"")), "a dtype of safetensors (BOOL"},
      {manifest_with(tensor_with("[[0, 0, 6]]") + "," + tensor_with("[[0, 0, 6]]")),
       "every tensor once: w twice"},
  };
  for (const auto& [text, expected] : cases) {
    const auto error = error_text([&] { parse_manifest(text, "m.json"); });
    EXPECT_NE(error.find(expected), std::string::npos) << error << "\nexpected " << expected;
  }
  std::string renamed = sound;
  renamed.replace(renamed.find("shard-00001"), 11, "../../shard");
  EXPECT_EQ(error_text([&] { parse_manifest(renamed, "m.json"); }),
            "[checkpoint.manifest] shard shard-00001-of-00002.safetensors: found "
            "\"../../shard-of-00002.safetensors\" (m.json; the file is damaged)");
}

}  // namespace
}  // namespace tessera::checkpoint
