// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "tessera/recipe/parameter_groups.h"
#include "tests/recipe/recipe_text.h"

namespace tessera::recipe {
namespace {

OptimizerRecipe with_groups(std::vector<std::string> groups) {
  OptimizerRecipe optimizer;
  optimizer.weight_decay = 0.05;
  optimizer.groups = std::move(groups);
  return optimizer;
}

TEST(Groups, WithoutAnyOnlyMatricesDecay) {
  OptimizerRecipe optimizer = with_groups({});
  EXPECT_EQ(ParameterGroups(optimizer).of("head.weight", true, 0).weight_decay, 0.05);
  EXPECT_EQ(ParameterGroups(optimizer).of("head.bias", false, 0).weight_decay, 0);
  EXPECT_EQ(ParameterGroups(optimizer).of("head.bias", false, 7).lr_scale, 1);
  optimizer.no_decay = "none";
  EXPECT_EQ(ParameterGroups(optimizer).of("head.bias", false, 0).weight_decay, 0.05);
}

// MAE's fine-tuning of B: 0.65^(13 - id) with id 0 for patches, tokens and positions, 12 for block 11, 13 for
// the head.
TEST(Groups, LayerDecayIsMaes) {
  OptimizerRecipe optimizer = with_groups({"head.*: lr_scale=2"});
  optimizer.layer_decay = 0.65;
  const ParameterGroups groups(optimizer);
  EXPECT_DOUBLE_EQ(groups.of("pos_embed", false, 13).lr_scale, std::pow(0.65, 13));
  EXPECT_DOUBLE_EQ(groups.of("blocks.11.attn.qkv.weight", true, 1).lr_scale, 0.65);
  EXPECT_DOUBLE_EQ(groups.of("fc_norm.weight", false, 0).lr_scale, 1);
  EXPECT_DOUBLE_EQ(groups.of("head.weight", true, 0).lr_scale, 2);
}

TEST(Groups, TheLastThatMatchesWins) {
  const ParameterGroups groups(
      with_groups({"blocks.[0-3].*: lr_scale = 0.5 ,weight_decay=1e-3", "*.qkv.*:lr_scale=0.5",
                   "*.bias: weight_decay=0.25", "stem*: freeze"}));
  const auto of = [&](const char* name, bool matrix) {
    const Treatment treatment = groups.of(name, matrix, 0);
    return concat(treatment.lr_scale, " ", treatment.weight_decay);
  };
  EXPECT_EQ(of("blocks.3.attn.qkv.weight", true), "0.25 0.001");
  EXPECT_EQ(of("blocks.4.attn.qkv.weight", true), "0.5 0.05");
  EXPECT_EQ(of("blocks.3.attn.qkv.bias", false), "0.25 0.25");
  EXPECT_EQ(of("stem.conv.weight", true), "0 0.05");
  EXPECT_EQ(of("head.weight", true), "1 0.05");
}

TEST(Groups, ErrorsSayWhatIsWrong) {
  const auto error = [](const std::string& group) {
    return read_error("[optimizer]\ngroups = ['" + group + "']");
  };
  const auto wanted = [](const std::string& group, const std::string& found) {
    return concat(
        "[recipe.groups] optimizer.groups has the entry \"", group, "\" with ", found,
        " (test.toml): expected entries such as \"head.*: lr_scale=10, weight_decay=0\" or \"stem: freeze\"");
  };
  EXPECT_EQ(error("head"), wanted("head", "nothing after the pattern"));
  EXPECT_EQ(error(" : freeze"), wanted(" : freeze", "no pattern"));
  EXPECT_EQ(error("a: lr=1"), wanted("a: lr=1", "\"lr=\""));
  EXPECT_EQ(error("[" + std::string(1'000'000, '1') + "-1]: freeze"),
            wanted("[" + std::string(39, '1') + "...", "a pattern of 1000004 characters"));
  EXPECT_EQ(error("a: freeze=1"), wanted("a: freeze=1", "\"freeze=\""));
  EXPECT_EQ(error("a: lr_scale"), wanted("a: lr_scale", "\"lr_scale\""));
  for (const char* bad : {"", "x", "-1", "1001", "nan", "1x"}) {
    EXPECT_EQ(
        error(concat("a: lr_scale=", bad)),
        wanted(concat("a: lr_scale=", bad), concat("\"", bad, "\" where a number from 0 to 1000 belongs")));
  }
}

TEST(Groups, MatchesAreCounted) {
  const std::vector<std::string> names = {"stem.weight", "blocks.1.norm.bias", "blocks.9.norm.bias",
                                          "blocks.10.norm.bias", "head.weight"};
  const auto matches =
      ParameterGroups(with_groups({"blocks.[0-5].*: freeze", "*.bias: weight_decay=0", "*: lr_scale=2"}))
          .matches(names);
  ASSERT_EQ(matches.size(), 3U);
  EXPECT_EQ(matches[0].text, "blocks.[0-5].*: freeze");
  EXPECT_EQ(matches[0].parameters, 1);
  EXPECT_EQ(matches[1].parameters, 3);
  EXPECT_EQ(matches[1].first + " " + matches[1].last, "blocks.1.norm.bias blocks.10.norm.bias");
  EXPECT_EQ(matches[2].parameters, 5);
  EXPECT_EQ(ParameterGroups(with_groups({"blocks.?.*: freeze"})).matches(names)[0].parameters, 2);
  EXPECT_EQ(ParameterGroups(with_groups({"blocks.[!0-5]*: freeze"})).matches(names)[0].parameters, 1);
  EXPECT_TRUE(ParameterGroups(with_groups({})).matches(names).empty());
}

TEST(Groups, OneThatMatchesNothingIsAnError) {
  const ParameterGroups groups(with_groups({"heads.weight: freeze"}));
  EXPECT_EQ(groups.matches({"stem.weight", "heads.weight"})[0].parameters, 1);
  const std::string wanted =
      "[recipe.groups] optimizer.groups has the entry \"heads.weight: freeze\", which matches no parameter";
  EXPECT_EQ(error_text([&] {
              groups.matches({"stem.weight", "head.weight"});
            }),
            wanted + "; did you mean \"head.weight\"?");
  EXPECT_EQ(error_text([&] { groups.matches({"x"}); }),
            wanted + ": expected a pattern that matches a name such as blocks.0.attn.qkv.weight");
}

TEST(Groups, BracketsHoldCharactersNotNumbers) {
  for (const char* numbers : {"[10-11]", "[0-15]", "[!10-9]"}) {
    EXPECT_EQ(read_error(concat("[optimizer]\ngroups = ['blocks.", numbers, ".*: freeze']")),
              concat("[recipe.groups] optimizer.groups has the entry \"blocks.", numbers,
                     ".*: freeze\" with ", numbers,
                     ", but brackets match a single character (test.toml): expected single characters "
                     "between brackets, such as [0-5]; 1[0-5] matches 10 to 15"));
  }
  EXPECT_EQ(read_error("[optimizer]\ngroups = ['blocks.1[0-5].*: freeze', 'x[1-2][3-4]y[-]: freeze']"),
            "no error");
}

}  // namespace
}  // namespace tessera::recipe
