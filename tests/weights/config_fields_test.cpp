// SPDX-License-Identifier: Apache-2.0
// The table of fields of foreign configurations, against lists that timm and transformers gave and the guide.
#include "tessera/weights/config_fields.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tests/error_text.h"

namespace tessera::weights {
namespace {

constexpr ConfigFile kFiles[] = {ConfigFile::kHuggingFace, ConfigFile::kPreprocessor, ConfigFile::kTimm,
                                 ConfigFile::kTimmPretrained, ConfigFile::kTimmModel};

const nlohmann::json& lists() {
  static const auto loaded =
      nlohmann::json::parse(std::ifstream(TESSERA_SOURCE_DIR "/tests/weights/config_fields.json"));
  return loaded;
}

bool has_field(ConfigFile file, const std::string& name) {
  return std::ranges::any_of(config_fields(),
                             [&](const ConfigField& each) { return each.file == file && each.name == name; });
}

TEST(ConfigFields, EveryFieldOfTimmAndTransformersIsDecided) {
  size_t counted = 0;
  for (const ConfigFile file : kFiles) {
    if (!lists().contains(to_string(file))) continue;
    for (const std::string name : lists()[to_string(file)]) {
      EXPECT_TRUE(has_field(file, name)) << to_string(file) << ": " << name;
      ++counted;
    }
  }
  EXPECT_GT(counted, 100U);
}

/// The list is timm's; the table has each of its names, and no other.
TEST(TimmArchitectures, EachIsComputedAsTimmDoesOrRefused) {
  const auto& expected = lists()["architectures"];
  for (const auto& [name, facts] : expected.items()) {
    const TimmArchitecture known = timm_architecture(name);
    EXPECT_TRUE(known.known) << name << " is not in the table: " << facts;
    EXPECT_EQ(known.refused.empty(), facts["why"].empty()) << name << ": " << facts;
    EXPECT_EQ(known.heads, facts["heads"].get<int64_t>()) << name;
  }
  for (const std::string_view name : timm_architectures())
    EXPECT_TRUE(expected.contains(name)) << name << " is not in the list of timm";
  EXPECT_EQ(timm_architectures().size(), expected.size());
  EXPECT_GT(expected.size(), 130U);
}

TEST(TimmArchitectures, ATagIsNoPartOfTheName) {
  EXPECT_EQ(timm_architecture("vit_small_patch16_rope_ape_224.naver_in1k").refused,
            "rotary position embeddings");
  EXPECT_EQ(timm_architecture("vit_huge_patch14_224.orig_in21k").heads, 16);
  EXPECT_FALSE(timm_architecture("vit_brand_new").known);
  EXPECT_FALSE(timm_architecture("").known);
}

TEST(ConfigFields, TheGuideListsEveryField) {
  const std::string guide = read_file(TESSERA_SOURCE_DIR "/docs/weights.md");
  constexpr std::pair<Treatment, const char*> kTitles[] = {{Treatment::kHonoured, "honoured"},
                                                           {Treatment::kTensors, "as the tensors"},
                                                           {Treatment::kOnly, "only"},
                                                           {Treatment::kNoInfluence, "no influence"}};
  for (const ConfigFile file : kFiles) {
    for (const auto& [treatment, title] : kTitles) {
      std::vector<std::string> names;
      for (const ConfigField& each : config_fields()) {
        if (each.file != file || each.treatment != treatment) continue;
        std::string values = treatment != Treatment::kOnly ? ""
                             : each.only.empty()           ? " null"
                                                           : concat(' ', each.only);
        std::ranges::replace(values, '|', '/');
        names.push_back(concat('`', each.name, values, '`'));
      }
      if (names.empty()) continue;
      const std::string row = concat("| ", to_string(file), " | ", title, " | ", join(names, ", "), " |\n");
      EXPECT_NE(guide.find(row), std::string::npos) << "docs/weights.md lacks\n" << row;
    }
  }
}

TEST(ConfigFields, OthersAreRefusedByNameOrNamed) {
  const auto error = [](ConfigFile file, const std::string& text) {
    return error_text([&] { check_fields(file, text, "x"); });
  };
  const std::string hint = "; Tessera's ViT would compute something else";
  EXPECT_EQ(error(ConfigFile::kTimmModel, R"({"act_layer": "quick_gelu"})"),
            "[weights.config] x: act_layer is \"quick_gelu\": expected \"gelu\"" + hint);
  EXPECT_EQ(error(ConfigFile::kTimmModel, R"({"pool_include_prefix": true})"),
            "[weights.config] x: pool_include_prefix is true: expected false" + hint);
  EXPECT_EQ(error(ConfigFile::kHuggingFace, R"({"quantization_config": {"bits": 4}})"),
            "[weights.config] x: quantization_config is {\"bits\":4}: expected null" + hint);
  EXPECT_EQ(error(ConfigFile::kPreprocessor, R"({"do_resize": false})"),
            "[weights.config] x: do_resize is false: expected true" + hint);
  EXPECT_EQ(check_fields(ConfigFile::kTimmModel, R"({"act_layer": null, "brand_new": 1, "depth": 3})", "x"),
            std::vector<std::string>{"brand_new"});
}

}  // namespace
}  // namespace tessera::weights
