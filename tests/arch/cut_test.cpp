// SPDX-License-Identifier: Apache-2.0
// What ranks hold of cut parameters, against lists written by hand.
#include "tessera/arch/cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "tessera/arch/model.h"

namespace tessera::arch {
namespace {

std::string boxes_text(const ParameterSpec& spec, int64_t degree, int64_t index) {
  std::string text;
  for (const Box& box : boxes_of(spec, degree, index)) text += to_string(box);
  return text;
}

ParameterSpec spec_of(const ModelConfig& config, const std::string& name) {
  const auto specs = parameters(config);
  return *std::ranges::find(specs, name, &ParameterSpec::name);
}

ModelConfig three_heads() {
  VitConfig config;
  config.width = 12;
  config.heads = 3;
  config.mlp_width = 96;
  config.depth = 2;
  config.layer_scale = 0.1;
  config.qk_norm = true;
  return config;
}

TEST(Cut, ThreeHeadsOverTwoAndFourRanks) {
  const ParameterSpec qkv = spec_of(three_heads(), "blocks.1.attn.qkv.weight");
  EXPECT_EQ(boxes_text(qkv, 2, 0), "[0:4, 0:12][12:16, 0:12][24:28, 0:12]");
  EXPECT_EQ(boxes_text(qkv, 2, 1), "[4:12, 0:12][16:24, 0:12][28:36, 0:12]");
  EXPECT_EQ(shape_of(qkv, 2, 1), (std::vector<int64_t>{24, 12}));
  EXPECT_EQ(shape_of(qkv, 4, 0), (std::vector<int64_t>{0, 12}));
  const ParameterSpec proj = spec_of(three_heads(), "blocks.1.attn.proj.weight");
  EXPECT_EQ(boxes_text(proj, 2, 1), "[0:12, 4:12]");
  EXPECT_EQ(boxes_text(proj, 4, 0), "[0:12, 0:0]");
  EXPECT_EQ(boxes_text(proj, 4, 3), "[0:12, 8:12]");
  const ParameterSpec bias = spec_of(three_heads(), "blocks.1.attn.qkv.bias");
  EXPECT_EQ(boxes_text(bias, 2, 0), "[0:4][12:16][24:28]");
}

TEST(Cut, HiddenUnitsStayTogetherBy32) {
  const ParameterSpec fc1 = spec_of(three_heads(), "blocks.0.mlp.fc1.weight");
  EXPECT_EQ(boxes_text(fc1, 2, 0), "[0:32, 0:12]");
  EXPECT_EQ(boxes_text(fc1, 2, 1), "[32:96, 0:12]");
  const ParameterSpec fc2 = spec_of(three_heads(), "blocks.0.mlp.fc2.weight");
  EXPECT_EQ(boxes_text(fc2, 2, 1), "[0:12, 32:96]");
  EXPECT_EQ(hidden_items(96), 3);
  EXPECT_EQ(hidden_items(4304), 269);  // So400m: 16 at a time
  EXPECT_EQ(hidden_items(21), 21);
}

/// Exactly the matrices of attention and MLP, and the biases of their first layers, are cut.
TEST(Cut, NamesWhatIsCut) {
  std::set<std::string> cut;
  for (const ParameterSpec& spec : parameters(three_heads())) {
    if (spec.is_cut() && spec.unit == "blocks.0") cut.insert(spec.name.substr(9));
    EXPECT_FALSE(spec.is_cut() && !spec.unit.starts_with("blocks.")) << spec.name;
  }
  EXPECT_EQ(cut, (std::set<std::string>{"attn.qkv.weight", "attn.qkv.bias", "attn.proj.weight",
                                        "mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight"}));
  cut.clear();
  for (const ParameterSpec& spec : parameters(model_config("resmlp_12_224"))) {
    if (spec.is_cut() && spec.unit == "blocks.0") cut.insert(spec.name.substr(9));
  }
  EXPECT_EQ(cut, (std::set<std::string>{"mlp_channels.fc1.weight", "mlp_channels.fc1.bias",
                                        "mlp_channels.fc2.weight"}));
}

/// Whatever the degree, the ranks hold every element exactly once.
TEST(Cut, RanksHoldEachElementOnce) {
  for (const ModelConfig& config :
       {three_heads(), model_config("resmlp_12_224"), model_config("So400m/14")}) {
    for (const ParameterSpec& spec : parameters(config)) {
      if (!spec.is_cut() || spec.unit != "blocks.1") continue;
      for (const int64_t degree : {1, 2, 3, 4, 7, 8}) {
        std::vector<Region> regions;
        for (int64_t rank = 0; rank < degree; ++rank) {
          int64_t elements = 0;
          for (const Box& box : boxes_of(spec, degree, rank)) {
            regions.push_back(Region::of(box));
            elements += box.numel();
          }
          int64_t numel = 1;
          for (const int64_t size : shape_of(spec, degree, rank)) numel *= size;
          EXPECT_EQ(numel, elements);
        }
        EXPECT_EQ(partition_fault(regions, spec.shape), std::nullopt) << spec.name << " over " << degree;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::arch
