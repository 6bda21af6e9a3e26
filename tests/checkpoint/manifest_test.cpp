// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include "sample_state.h"

namespace tessera::checkpoint {
namespace {
using namespace testing;

std::string manifest_with(const std::string& tensors, const std::string& world = "2",
                          const std::string& schema = "2") {
  return R"({"schema": )" + schema + R"(, "step": 3, "world": )" + world +
         R"(, "progress": {}, "recipe": "", "plan": null,
    "model": null, "shards": [{"file": "shard-00000-of-00002.safetensors", "bytes": 8, "xxh3": "0"},
    {"file": "shard-00001-of-00002.safetensors", "bytes": 8, "xxh3": "1"}], "tensors": [)" +
         tensors + "]}";
}
std::string tensor_with(const std::string& shards, const std::string& shape = "[2, 3]",
                        const std::string& dtype = "\"F32\"") {
  return R"({"name": "w", "dtype": )" + dtype + R"(, "shape": )" + shape + R"(, "regions": )" + shards + "}";
}

TEST(ManifestText, ComesBackAsItWas) {
  StoredManifest stored;
  stored.manifest = {.world = 2, .progress = at_step(9), .tensors = {{"w", "F32", {2, 3}}}};
  stored.shards = {{16, "00000000000000aa"}, {8, "00000000000000bb"}};
  stored.regions = {{{0, Region::interval({2, 3}, 0, 4)}, {1, Region::interval({2, 3}, 4, 6)}}};
  const std::string text = manifest_text(stored);
  const auto back = parse_manifest(text, "here");
  EXPECT_EQ(manifest_text(back), text);
  EXPECT_EQ(back.shards[1].checksum, "00000000000000bb");
  EXPECT_EQ(back.regions[0][1].region, Region::interval({2, 3}, 4, 6));
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
  EXPECT_EQ(parse_manifest(manifest_with(tensor_with("[[0, 0, 1]]", "[]")), "m").regions[0][0].region.end, 1);
}

TEST(ParseManifest, CopiesAreOfRegionsByRank) {
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
            "[checkpoint.manifest] m is damaged: w has the copy [1,0]: expected [rank, begin, end]");
}

std::string boxed(const std::string& boxes, const std::string& regions, const std::string& more = "") {
  return manifest_with(R"({"name": "w", "dtype": "F32", "shape": [4, 6], "boxes": )" + boxes +
                       R"(, "regions": )" + regions + more + "}");
}

TEST(ParseManifest, BoxesAreNamedByNumber) {
  const std::string columns = "[[[0, 4], [0, 2]], [[0, 4], [2, 6]]]";
  const std::string text =
      boxed(columns, "[[0, 0, 8, 0], [0, 0, 5, 1], [1, 5, 16, 1]]", R"(, "copies": [[1, 0, 8, 0]])");
  const auto stored = parse_manifest(text, "m");
  ASSERT_EQ(stored.regions[0].size(), 3U);
  EXPECT_EQ(stored.regions[0][0].region, Region::of({{{0, 4}, {0, 2}}}));
  EXPECT_EQ(stored.regions[0][0].copies, std::vector<int64_t>({1}));
  EXPECT_EQ(stored.regions[0][2].shard, 1);
  EXPECT_EQ(stored.regions[0][2].region, (Region{{{{0, 4}, {2, 6}}}, 5, 16}));
  const std::string written = manifest_text(stored);
  EXPECT_NE(
      written.find(R"("boxes":[[[0,4],[0,2]],[[0,4],[2,6]]],"regions":[[0,0,8,0],[0,0,5,1],[1,5,16,1]],)"
                   R"("copies":[[1,0,8,0]]})"),
      std::string::npos)
      << written;
  // Two thirds of the tensor as intervals of it, and columns of the rest of its rows.
  const auto mixed =
      boxed("[[[3, 4], [0, 3]], [[3, 4], [3, 6]]]", "[[0, 0, 10], [1, 10, 18], [0, 0, 3, 0], [1, 0, 3, 1]]");
  EXPECT_EQ(parse_manifest(mixed, "m").regions[0].size(), 4U);
}

TEST(ParseManifest, FaultsOfBoxes) {
  const std::string columns = "[[[0, 4], [0, 2]], [[0, 4], [2, 6]]]";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {boxed("[[[0, 4], [2, 7]]]", "[]"), "w has the box [[0,4],[2,7]]: expected a box within [4, 6]"},
      {boxed("[[[0, 4], [-1, 6]]]", "[]"), "it has the value -1: expected a whole number of at least 0"},
      {boxed("[[[3, 2], [0, 6]]]", "[]"), "w has the box [[3,2],[0,6]]: expected a box within [4, 6]"},
      {boxed("[[[0, 4]]]", "[]"), "w has the box [[0,4]]: expected a box within [4, 6]"},
      {boxed("[[0, 4]]", "[]"), "it does not follow schema 2: [json.exception.type_error"},
      {boxed(columns, "[[0, 0, 8, 2]]"), "w has the region [0,0,8,2]: expected a box below 2"},
      {boxed(columns, "[[0, 0, 9, 0]]"),
       "w has the region [0,0,9,0]: expected regions of [4, 6] in ascending order"},
      {boxed(columns, "[[0, 0, 8, 0, 0]]"),
       "w has the region [0,0,8,0,0]: expected [rank, begin, end] or "
       "[rank, begin, end, box]"},
      {boxed("[]", "[[0, 0, 24, 0]]"), "w has the region [0,0,24,0]: expected [rank, begin, end]"},
      {boxed(columns, "[[0, 0, 8, 0]]"), "w: the regions cover 8 of 24 elements"},
      {boxed("[[[0, 4], [0, 3]], [[0, 4], [2, 6]]]", "[[0, 0, 12, 0], [1, 0, 16, 1]]"),
       "w: regions [0:4, 0:3] and [0:4, 2:6] overlap"},
      {boxed(columns, "[[0, 0, 16, 1], [1, 0, 8, 0]]"),
       "w has the region [1,0,8,0]: expected regions of [4, 6] in "
       "ascending order"},
      {boxed(columns, "[[0, 0, 8, 0], [0, 0, 16, 1]]", R"(, "copies": [[1, 0, 16, 0]])"),
       "w has the copy [1,0,16,0]"},
  };
  for (const auto& [text, expected] : cases) {
    const auto error = error_text([&] { parse_manifest(text, "m.json"); });
    EXPECT_NE(error.find(expected), std::string::npos) << error << "\nexpected " << expected;
  }
}

// The form before boxes: "slices", intervals of the whole tensor alone.
TEST(ParseManifest, SchemaOneIsReadAndWrittenAsSchemaTwo) {
  const std::string slices =
      R"({"name": "w", "dtype": "F32", "shape": [2, 3], "slices": [[0, 0, 4], [1, 4, 6]],
    "copies": [[1, 0, 4]]})";
  const auto stored = parse_manifest(manifest_with(slices, "2", "1"), "m");
  EXPECT_EQ(stored.manifest.schema, 1);
  EXPECT_EQ(stored.regions[0][1].region, Region::interval({2, 3}, 4, 6));
  EXPECT_EQ(stored.regions[0][0].copies, std::vector<int64_t>({1}));
  const auto again = parse_manifest(manifest_text(stored), "m");
  EXPECT_EQ(again.manifest.schema, 2);
  EXPECT_EQ(again.regions[0][1].region, stored.regions[0][1].region);
  EXPECT_NE(error_text([&] { parse_manifest(manifest_with(slices), "m"); }).find("key 'regions' not found"),
            std::string::npos);
  EXPECT_NE(error_text([&] {
              parse_manifest(manifest_with("", "2", "0"), "m");
            }).find("it has schema 0: expected schema 1 to 2"),
            std::string::npos);
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
      {"[]", "it does not follow schema 2: [json.exception."},
      {without("progress"), "key 'progress' not found"},
      {without("xxh3"), "key 'xxh3' not found"},
      {std::string(100, '['), "[checkpoint.manifest] JSON is nested too deeply: expected at most 64 levels"},
      {manifest_with("", "3"), "it lists 2 shards: expected one for each of 3 ranks"},
      {manifest_with("", "-1"), "it has the value -1: expected a whole number of at least 0"},
      {manifest_with("", "1.5"), "it has the value 1.5: expected a whole number of at least 0"},
      {manifest_with("", "18446744073709551615"),
       "it has the value 18446744073709551615: expected a whole number of at least 0"},
      {manifest_with("7"), "it does not follow schema 2: [json.exception.type_error"},
      {manifest_with(tensor_with("[[0, 0, 4], [1, 5, 6]]")), "w: the regions cover 5 of 6 elements"},
      {manifest_with(tensor_with("[[0, 0, 4], [1, 3, 6]]")),
       "w: regions [0:2, 0:3][0:4] and [0:2, 0:3][3:6] overlap"},
      {manifest_with(tensor_with("[[0, 0, 0], [1, 0, 6]]")),
       "w has the region [0,0,0]: expected regions of [2, 3] in ascending order, on ranks below 2"},
      {manifest_with(tensor_with("[[2, 0, 6]]")),
       "w has the region [2,0,6]: expected regions of [2, 3] in ascending order, on ranks below 2"},
      {manifest_with(tensor_with("[[0, 0, 7]]")),
       "w has the region [0,0,7]: expected regions of [2, 3] in ascending order, on ranks below 2"},
      {manifest_with(tensor_with("[[1, 4, 6], [0, 0, 4]]")),
       "w has the region [0,0,4]: expected regions of [2, 3] in ascending order, on ranks below 2"},
      {manifest_with(tensor_with("[[0, 0, 5]]")), "w: the regions cover 5 of 6 elements"},
      {manifest_with(tensor_with("[]", "[0]")), "w has no region"},
      {manifest_with(tensor_with("[[0, 0]]")), "w has the region [0,0]: expected [rank, begin, end]"},
      {manifest_with(tensor_with("{}")), "w has the regions {}: expected a list"},
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
