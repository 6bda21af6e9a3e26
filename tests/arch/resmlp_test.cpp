// SPDX-License-Identifier: Apache-2.0
// ResMLP's numbers are timm's: parameters of timm.create_model(name), multiply-adds of the paper's table.
#include "tessera/arch/resmlp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tessera/arch/model.h"
#include "tests/arch/small_config.h"
#include "tests/error_text.h"

namespace tessera::arch {
namespace {

TEST(ResMlp, CountsAreTimms) {
  const std::map<std::string, std::pair<int64_t, double>> published = {
      {"resmlp_12_224", {15350872, 3.01}},
      {"resmlp_24_224", {30020680, 5.96}},
      {"resmlp_36_224", {44690488, 8.91}},
      {"resmlp_big_24_224", {129138280, 100.23}}};
  ASSERT_EQ(resmlp_ladder().size(), published.size());
  for (const auto& [name, config] : resmlp_ladder()) {
    const auto [count, gmacs] = published.at(name);
    EXPECT_EQ(parameter_count(config), count) << name;
    EXPECT_NEAR(forward_flops(config) / 2e9, gmacs, 0.006) << name;
    EXPECT_NO_THROW(check(config));
    EXPECT_EQ(resmlp_config(name), config);
  }
}

TEST(ResMlp, NamesShapesAndInitialValues) {
  const auto config = small<ResMlpConfig>(
      {.image_size = 48, .patch_size = 16, .width = 32, .mlp_width = 96, .classes = 7});  // 9 patches
  std::map<std::string, ParameterSpec> found;
  for (const auto& spec : parameters(config)) found[spec.name] = spec;
  EXPECT_EQ(found.size(), 2U + 2 * 12 + 4);
  EXPECT_EQ(found.at("stem.proj.weight").shape, (std::vector<int64_t>{32, 3, 16, 16}));
  EXPECT_EQ(found.at("stem.proj.weight").init_value, 1 / std::sqrt(768.0));
  EXPECT_EQ(found.at("blocks.1.norm2.alpha").shape, (std::vector<int64_t>{1, 1, 32}));
  EXPECT_EQ(found.at("blocks.1.norm2.alpha").init, Init::kOne);
  EXPECT_EQ(found.at("blocks.0.ls1").init_value, 1e-5);
  EXPECT_EQ(found.at("blocks.0.linear_tokens.weight").shape, (std::vector<int64_t>{9, 9}));
  EXPECT_EQ(found.at("blocks.0.linear_tokens.weight").init_value, std::sqrt(6.0 / 18));
  EXPECT_EQ(found.at("blocks.0.mlp_channels.fc1.bias").init_value, 1e-6);
  EXPECT_EQ(found.at("head.weight").shape, (std::vector<int64_t>{7, 32}));
  for (const auto& [name, spec] : found) {
    EXPECT_EQ(spec.decay, name.ends_with("weight")) << name;
    EXPECT_FALSE(spec.buffer);
  }
  EXPECT_EQ(unit_names(config), (std::vector<std::string>{"stem", "blocks.0", "blocks.1", "head"}));
  EXPECT_EQ(describe(config), "ResMLP, width 32, depth 2, patch 16, 9 tokens of a 48 px image");
}

// By hand: one block of 2 channels and 4 tokens, fp32.
TEST(ResMlp, KeptActivations) {
  const auto config = small<ResMlpConfig>({.image_size = 4,
                                           .patch_size = 2,
                                           .channels = 1,
                                           .width = 2,
                                           .depth = 1,
                                           .mlp_width = 6,
                                           .classes = 5});
  const auto kept = activations(config, 4);
  ASSERT_EQ(kept.units.size(), 3U);
  EXPECT_EQ(kept.units[0].all, 4 * 16);
  EXPECT_EQ(kept.units[1].input, 4 * 8);
  EXPECT_EQ(kept.units[1].all, 4 * (8 + 5 * 8 + 2 * 24));
  EXPECT_EQ(kept.units[2].all, 4 * 8 + 2 * 4 * 5 + 4 * 2 * 2);
}

TEST(ResMlp, Errors) {
  const auto message = [](void (*change)(ResMlpConfig&)) {
    ResMlpConfig config;
    change(config);
    return error_text([&] { check(config); });
  };
  EXPECT_EQ(message([](ResMlpConfig&) {}), "no error");
  EXPECT_EQ(message([](ResMlpConfig& c) { c.image_size = 225; }),
            "[arch.check] image_size is 225: expected a multiple of patch_size (16); nearest: 224 and 240");
  EXPECT_EQ(message([](ResMlpConfig& c) { c.depth = 0; }), "[arch.check] depth is 0: expected 1 to 4096");
  EXPECT_EQ(message([](ResMlpConfig& c) {
              c.image_size = 1 << 10;
              c.patch_size = 1;
            }),
            "[arch.check] the number of patches of an image is 1048576: expected 1 to 65536");
  EXPECT_EQ(message([](ResMlpConfig& c) { c.drop_path = 1; }),
            "[arch.check] drop_path is 1: expected at least 0 and below 1");
  EXPECT_EQ(message([](ResMlpConfig& c) { c.layer_scale = NAN; }),
            "[arch.check] layer_scale is nan: expected 0 (none) to 1e6");
  EXPECT_EQ(error_text([] { resmlp_config("resmlp_25_224"); }),
            "[arch.resmlp_config] unknown model \"resmlp_25_224\": expected the name of a ResMLP, like "
            "resmlp_24_224; did you mean \"resmlp_24_224\"?");
}

}  // namespace
}  // namespace tessera::arch
