// SPDX-License-Identifier: Apache-2.0
// The table of fields of foreign configurations, against lists that timm and transformers gave and the guide.
#include "tessera/weights/config_fields.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/arch/vit.h"
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

TEST(ConfigFields, ArchitecturesOfTimmHaveTheirHeadsOrAreRefused) {
  for (const auto& [name, facts] : lists()["architectures"].items()) {
    const TimmArchitecture known = timm_architecture(name);
    EXPECT_EQ(known.refused.empty(), facts["why"].empty()) << name << ": " << facts;
    if (!known.refused.empty()) continue;
    int64_t usual = facts["width"].get<int64_t>() / 64;
    for (const auto& size : arch::size_ladder()) {
      if (size.config.width == facts["width"] && size.config.depth == facts["depth"])
        usual = size.config.heads;
    }
    EXPECT_EQ(known.heads > 0 ? known.heads : usual, facts["heads"].get<int64_t>()) << name;
  }
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
