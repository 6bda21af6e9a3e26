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
std::string tensor_with(const std::string& shards, const std::string& shape = "[2, 3]",
                        const std::string& dtype = "\"F32\"") {
  return R"({"name": "w", "dtype": )" + dtype + R"(, "shape": )" + shape + R"(, "slices": )" + shards + "}";
}

TEST(ManifestText, ComesBackAsItWas) {
  StoredManifest stored;
  stored.manifest = {.schema = 1, .world = 2, .progress = at_step(9), .tensors = {{"w", "F32", {2, 3}}}};
  stored.shards = {{16, "00000000000000aa"}, {8, "00000000000000bb"}};
  stored.regions = {{{0, 0, 4}, {1, 4, 6}}};
  const std::string text = manifest_text(stored);
  const auto back = parse_manifest(text, "here");
  EXPECT_EQ(manifest_text(back), text);
  EXPECT_EQ(back.shards[1].checksum, "00000000000000bb");
  EXPECT_EQ(back.regions[0][1].begin, 4);
}

TEST(ManifestText, ProgressMustBeJson) {
  StoredManifest stored;
  stored.shards.resize(1);
  stored.manifest.progress.json = "{oops";
  EXPECT_TRUE(error_text([&] {
                manifest_text(stored);
              }).starts_with("[checkpoint.save] the run's progress is not valid JSON: "));
}

TEST(ParseManifest, SoundOnes) {
  EXPECT_EQ(parse_manifest(manifest_with(tensor_with("[[0, 0, 4], [1, 4, 6]]")), "m").regions[0].size(), 2U);
  EXPECT_EQ(parse_manifest(manifest_with(tensor_with("[[1, 0, 0]]", "[0, 7]")), "m").regions[0].size(), 1U);
  EXPECT_EQ(parse_manifest(manifest_with(tensor_with("[[0, 0, 1]]", "[]")), "m").regions[0][0].end, 1);
}

TEST(ParseManifest, CopiesAreOfSlicesByRank) {
  const auto text = [](const std::string& copies) {
    return manifest_with(tensor_with("[[0, 0, 4], [0, 4, 6]], \"copies\": " + copies));
  };
  const auto stored = parse_manifest(text("[[1, 0, 4]]"), "m");
  EXPECT_EQ(stored.regions[0][0].copies, std::vector<int64_t>({1}));
  EXPECT_TRUE(stored.regions[0][1].copies.empty());
  for (const char* wrong :
       {"[[1, 0, 3]]", "[[1, 1, 4]]", "[[2, 0, 4]]", "[[0, 0, 4]]", "[[1, 0, 4], [1, 0, 4]]"}) {
    const auto error = error_text([&] { parse_manifest(text(wrong), "m"); });
    EXPECT_TRUE(error.starts_with("[checkpoint.manifest] m is damaged: w has the copy [")) << error;
  }
  EXPECT_EQ(error_text([&] { parse_manifest(text("3"), "m"); }),
            "[checkpoint.manifest] m is damaged: w has the copies 3: expected a list");
  EXPECT_EQ(error_text([&] { parse_manifest(text("[[1, 0]]"), "m"); }),
            "[checkpoint.manifest] m is damaged: w has the copy [1,0]: expected [shard, begin, end]");
}

TEST(ParseManifest, EveryFaultHasItsLine) {
  const std::string sound = manifest_with(tensor_with("[[0, 0, 6]]"));
  const auto without = [&](const std::string& key) {
    std::string text = sound;
    text.replace(text.find('"' + key + '"') + 1, 1, "_");
    return text;
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[1", "it is not valid JSON at byte 3"},
      {"[]", "it does not follow schema 1: [json.exception."},
      {without("progress"), "key 'progress' not found"},
      {without("xxh3"), "key 'xxh3' not found"},
      {std::string(100, '['), "[checkpoint.manifest] JSON is nested too deeply: expected at most 64 levels"},
      {manifest_with("", "3"), "it lists 2 shards: expected one for each of 3 ranks"},
      {manifest_with("", "-1"), "it has the value -1: expected a whole number of at least 0"},
      {manifest_with("", "1.5"), "it has the value 1.5: expected a whole number of at least 0"},
      {manifest_with("", "18446744073709551615"),
       "it has the value 18446744073709551615: expected a whole number of at least 0"},
      {manifest_with("7"), "it does not follow schema 1: [json.exception.type_error"},
      {manifest_with(tensor_with("[[0, 0, 4], [1, 5, 6]]")),
       "w has the slice [1,5,6]: expected slices that follow each other"},
      {manifest_with(tensor_with("[[0, 0, 4], [1, 3, 6]]")),
       "w has the slice [1,3,6]: expected slices that follow each other"},
      {manifest_with(tensor_with("[[0, 0, 0], [1, 0, 6]]")),
       "w has the slice [0,0,0]: expected slices that follow each other"},
      {manifest_with(tensor_with("[[2, 0, 6]]")),
       "w has the slice [2,0,6]: expected slices that follow each other"},
      {manifest_with(tensor_with("[[0, 0, 5]]")), "w has slices of 5 elements: expected 6 elements"},
      {manifest_with(tensor_with("[]", "[0]")), "w has slices of 0 elements: expected 0 elements"},
      {manifest_with(tensor_with("[[0, 0]]")), "w has the slice [0,0]: expected [shard, begin, end]"},
      {manifest_with(tensor_with("{}")), "w has the slices {}: expected a list"},
      {manifest_with(tensor_with("[]", "[4294967296, 4294967296]")),
       "w [4294967296, 4294967296] has a size beyond 63 bits"},
      {manifest_with(tensor_with("[]", "[2305843009213693952]")),
       "w [2305843009213693952] has a size beyond 63 bits"},
      {manifest_with(tensor_with("[]", "6")), "w has the shape 6: expected a list"},
      {manifest_with(tensor_with("[[0, 0, 6]]", "[6]", "\"F33\"")),
       "unknown dtype \"F33\": expected a dtype of safetensors: BOOL"},
      {manifest_with(tensor_with("[[0, 0, 6]]") + "," + tensor_with("[[0, 0, 6]]")), "it lists w twice"},
  };
  for (const auto& [text, expected] : cases) {
    const auto error = error_text([&] { parse_manifest(text, "m.json"); });
    EXPECT_NE(error.find(expected), std::string::npos) << error << "\nexpected " << expected;
  }
  std::string renamed = sound;
  renamed.replace(renamed.find("shard-00001"), 11, "../../shard");
  EXPECT_EQ(error_text([&] { parse_manifest(renamed, "m.json"); }),
            "[checkpoint.manifest] m.json is damaged: it lists the shard "
            "\"../../shard-of-00002.safetensors\": expected shard-00001-of-00002.safetensors");
}

}  // namespace
}  // namespace tessera::checkpoint
