// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

#include "tessera/arch/model.h"
#include "tessera/arch/vit.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tests/arch/small_config.h"
#include "tests/error_text.h"

namespace tessera::arch {
namespace {

// Printed by `timm_counts.py counts`.
TEST(Sizes, CountsAreThoseOfTimm) {
  const std::vector<std::pair<std::string, int64_t>> timm = {
      {"mu/16", 76712},        {"Ti/16", 5717416},       {"S/16", 22050664},       {"M/16", 38837736},
      {"B/16", 86567656},      {"L/16", 304326632},      {"So400m/14", 413597656}, {"H/14", 632045800},
      {"g/14", 1012611432},    {"G/14", 1844440680},     {"e/14", 3807214312},     {"10B/14", 10077917160},
      {"60B/14", 60423281640}, {"120B/14", 118415461352}};
  ASSERT_EQ(size_ladder().size(), timm.size());
  for (size_t i = 0; i < timm.size(); ++i) {
    EXPECT_EQ(size_ladder()[i].name, timm[i].first);
    EXPECT_EQ(parameter_count(size_ladder()[i].config), timm[i].second) << timm[i].first;
    EXPECT_NO_THROW(check(size_ladder()[i].config)) << timm[i].first;
  }
}

// Parameters of timm.create_model(name).
TEST(Sizes, TimmNames) {
  const std::vector<std::pair<std::string, int64_t>> timm = {
      {"vit_tiny_patch16_224", 5717416},     {"vit_small_patch16_224", 22050664},
      {"vit_base_patch16_224", 86567656},    {"vit_base_patch16_384", 86859496},
      {"vit_base_patch8_224", 86576872},     {"vit_base_patch32_224", 88224232},
      {"vit_large_patch16_224", 304326632},  {"vit_large_patch14_224", 304203752},
      {"vit_giant_patch14_224", 1012611432}, {"vit_gigantic_patch14_224", 1844440680}};
  for (const auto& [name, count] : timm) EXPECT_EQ(parameter_count(vit_config(name)), count) << name;
  EXPECT_EQ(vit_config("S"), vit_config("S/16"));
  EXPECT_EQ(vit_config("S/16"), vit_config("vit_small_patch16_224"));
  EXPECT_EQ(vit_config("B/16"), VitConfig{});
  EXPECT_EQ(vit_config("B/32").patch_size, 32);
}

TEST(Sizes, TanhHeadAddsOneMatrix) {
  VitConfig config = vit_config("B/16");
  config.head = Head::kTanh;
  EXPECT_EQ(parameter_count(config), 87158248);
}

TEST(Sizes, UnknownNamesNameTheNearest) {
  EXPECT_EQ(error_text([] { vit_config("So40m/14"); }),
            "[arch.vit_config] unknown model \"So40m/14\": expected the name of a model, like S/16, "
            "vit_small_patch16_224 or resnet50; did you mean \"So400m/14\"?");
  EXPECT_NE(error_text([] { vit_config("vit_smal_patch16_224"); }).find("mean \"vit_small_patch16_224\"?"),
            std::string::npos);
  for (const auto& [name, meant] :
       {std::pair("ViT-S", "S/16"), std::pair("ViT-L/32", "L/32"), std::pair("vit_b_16", "B/16"),
        std::pair("vit_huge", "H/14"), std::pair("ViT-G/14", "G/14"), std::pair("vit-g", "g/14"),
        std::pair("small/8", "S/8"), std::pair("s/16", "S/16"), std::pair("vit_small_patch16", "S/16")}) {
    const std::string message = error_text([&, given = name] { vit_config(given); });
    EXPECT_NE(message.find(concat("; did you mean \"", meant, "\"?")), std::string::npos) << message;
  }
  const std::string all = error_text([] { vit_config("something else"); });
  EXPECT_NE(all.find("; known: mu/16, Ti/16, "), std::string::npos) << all;
  for (const char* name : {", 120B/14, vit_base_patch16_224, ", ", vit_tiny_patch16_224, resnet18, ",
                           ", resnet152, resmlp_12_224, ", ", resmlp_big_24_224"})
    EXPECT_NE(all.find(name), std::string::npos) << all;
  EXPECT_NE(error_text([] { vit_config("ResNet50"); }).find("did you mean \"resnet50\"?"), std::string::npos);
  for (const char* name : {"", "/", "S/", "S/0", "S/-1", "S/16x", "S/99999999999999999999", "vit_",
                           "vit_small", "vit_small_patch", "vit_small_patch_224", "vit_small_patch16_",
                           "vit_small_patch16", "vit_none_patch16_224", "s/16\n"}) {
    const std::string message = error_text([&] { vit_config(name); });
    EXPECT_TRUE(message.starts_with("[arch.vit_config] ")) << name << ": " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

/// "name size size ..." of every parameter.
std::vector<std::string> listing(const VitConfig& config) {
  std::vector<std::string> lines;
  for (const auto& spec : parameters(config)) {
    std::string line = spec.name;
    for (const int64_t size : spec.shape) line += concat(" ", size);
    lines.push_back(line);
  }
  return lines;
}

// timm_parameters.txt is printed by `timm_counts.py names`.
TEST(Parameters, NamesShapesAndOrderAreThoseOfTimm) {
  std::map<std::string, VitConfig> variants;
  variants["plain"] = small_config();
  VitConfig& gap = variants["gap"] = small_config();
  gap.class_token = false;
  gap.pool = Pool::kAverage;
  gap.channels = 1;
  VitConfig& registers = variants["registers"] = small_config();
  registers.registers = 4;
  registers.layer_scale = 1e-5;
  registers.qk_norm = true;
  VitConfig& map = variants["map"] = small_config();
  map.class_token = false;
  map.pool = Pool::kAttention;
  variants["distilled"] = small_config();
  variants["distilled"].distillation_token = true;
  VitConfig& normed = variants["norm_before_pool"] = small_config();
  normed.class_token = false;
  normed.pool = Pool::kAverage;
  normed.norm_before_pool = true;

  std::map<std::string, std::vector<std::string>> timm;
  std::istringstream file(read_file(TESSERA_SOURCE_DIR "/tests/arch/timm_parameters.txt"));
  for (std::string line; std::getline(file, line);) {
    const size_t space = line.find(' ');
    timm[line.substr(0, space)].push_back(line.substr(space + 1));
  }
  ASSERT_EQ(timm.size(), variants.size());
  for (const auto& [name, config] : variants) EXPECT_EQ(listing(config), timm[name]) << name;
}

TEST(Parameters, UnitsInForwardOrder) {
  std::vector<std::string> units;
  for (const auto& spec : parameters(small_config())) {
    if (units.empty() || units.back() != spec.unit) units.push_back(spec.unit);
  }
  EXPECT_EQ(units, (std::vector<std::string>{"stem", "blocks.0", "blocks.1", "head"}));
}

TEST(Parameters, DecayAndInitialValues) {
  VitConfig config = small_config();
  config.registers = 2;
  config.layer_scale = 0.25;
  config.pool = Pool::kAttention;
  config.head = Head::kTanh;
  std::set<std::string> names;
  for (const auto& spec : parameters(config)) {
    EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
    EXPECT_FALSE(spec.buffer);
    const bool matrix = spec.name.ends_with(".weight") && spec.shape.size() >= 2;
    EXPECT_EQ(spec.decay, matrix) << spec.name;
    const bool bias = spec.name.ends_with(".bias");
    if (spec.name.starts_with("patch_embed")) {
      EXPECT_EQ(spec.init, Init::kUniform);
      EXPECT_DOUBLE_EQ(spec.init_value, 1.0 / std::sqrt(3.0 * 8 * 8));
    } else if (matrix || spec.name == "pos_embed") {
      EXPECT_EQ(spec.init, Init::kTruncatedNormal) << spec.name;
      EXPECT_EQ(spec.init_value, 0.02) << spec.name;
    } else if (spec.name == "cls_token" || spec.name == "reg_token") {
      EXPECT_EQ(spec.init, Init::kTruncatedNormal) << spec.name;
      EXPECT_EQ(spec.init_value, 1e-6) << spec.name;
    } else if (spec.name == "attn_pool.latent") {
      EXPECT_EQ(spec.init_value, 0.125);  // 1/sqrt(64)
    } else if (spec.name.ends_with(".gamma")) {
      EXPECT_EQ(spec.init, Init::kConstant) << spec.name;
      EXPECT_EQ(spec.init_value, 0.25) << spec.name;
    } else {
      EXPECT_EQ(spec.init, bias ? Init::kZero : Init::kOne) << spec.name;
    }
  }
  EXPECT_TRUE(names.contains("pre_logits.fc.weight"));
}

// google-research/big_vision models/vit.py; bounds and deviations by hand for width 64, MLP 256, 10 classes.
TEST(Parameters, InitialValuesCanBeBigVisions) {
  VitConfig config = small_config();
  config.registers = 2;
  config.pool = Pool::kAttention;
  config.head = Head::kTanh;
  ASSERT_EQ(std::tuple(config.width, config.mlp_width, config.classes), std::tuple(64, 256, 10));
  const std::vector<ParameterSpec> timms = parameters(config);
  config.initial_values = InitialValues::kBigVision;
  const double attention = std::sqrt(3.0 / 64), mlp = std::sqrt(6.0 / 320), cut = 0.87962566103423978;
  const std::map<std::string, std::pair<Init, double>> expected = {
      {"cls_token", {Init::kZero, 0}},
      {"reg_token", {Init::kTruncatedNormal, 1e-6}},  // not of big_vision
      {"pos_embed", {Init::kNormal, 0.125}},
      {"patch_embed.proj.weight", {Init::kNormalWithinTwo, 1 / std::sqrt(192.0) / cut}},
      {"patch_embed.proj.bias", {Init::kZero, 0}},
      {"blocks.0.attn.qkv.weight", {Init::kUniform, attention}},  // of q, k and v, not of the three as one
      {"blocks.0.attn.qkv.bias", {Init::kZero, 0}},
      {"blocks.0.attn.proj.weight", {Init::kUniform, attention}},
      {"blocks.0.mlp.fc1.weight", {Init::kUniform, mlp}},
      {"blocks.0.mlp.fc1.bias", {Init::kNormal, 1e-6}},
      {"blocks.0.mlp.fc2.weight", {Init::kUniform, mlp}},
      {"blocks.0.mlp.fc2.bias", {Init::kNormal, 1e-6}},
      {"blocks.0.norm1.weight", {Init::kOne, 0}},
      {"attn_pool.latent", {Init::kUniform, std::sqrt(6.0 / 65)}},
      {"attn_pool.kv.weight", {Init::kUniform, attention}},
      {"attn_pool.mlp.fc2.bias", {Init::kNormal, 1e-6}},
      {"pre_logits.fc.weight", {Init::kNormalWithinTwo, 0.125 / cut}},
      {"head.weight", {Init::kNormalWithinTwo, 0.125 / cut}},
      {"head.bias", {Init::kZero, 0}}};
  const std::vector<ParameterSpec> found = parameters(config);
  ASSERT_EQ(found.size(), timms.size());
  size_t compared = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].name, timms[i].name);
    EXPECT_EQ(found[i].shape, timms[i].shape) << found[i].name;
    EXPECT_EQ(found[i].decay, timms[i].decay) << found[i].name;
    if (!expected.contains(found[i].name)) continue;
    ++compared;
    EXPECT_EQ(found[i].init, expected.at(found[i].name).first) << found[i].name;
    EXPECT_DOUBLE_EQ(found[i].init_value, expected.at(found[i].name).second) << found[i].name;
  }
  EXPECT_EQ(compared, expected.size());
  config.head_zero_init = true;
  config.head_bias = -7;
  const std::vector<ParameterSpec> zeroed = parameters(config);
  EXPECT_EQ(zeroed[zeroed.size() - 2].init, Init::kZero);
  EXPECT_EQ(zeroed.back().init_value, -7);
}

TEST(Parameters, SinCosPositionsAreNotTrained) {
  VitConfig config = small_config();
  const int64_t learned = parameter_count(config);
  config.position_embedding = PositionEmbedding::kSinCos2d;
  EXPECT_EQ(learned - parameter_count(config), 17 * 64);
  int buffers = 0;
  for (const auto& spec : parameters(config)) {
    if (!spec.buffer) continue;
    ++buffers;
    EXPECT_EQ(spec.name, "pos_embed");
    EXPECT_EQ(spec.shape, (std::vector<int64_t>{1, 17, 64}));
  }
  EXPECT_EQ(buffers, 1);
}

// The names of the original program, so that its checkpoints are read as they are.
TEST(Sizes, TheGiantsNormBeforeTheyPool) {
  for (const char* name : {"10B", "60B", "120B"}) {
    const std::vector<ParameterSpec> all = parameters(vit_config(name));
    EXPECT_EQ(all.at(all.size() - 4).name, "norm.weight") << name;
    EXPECT_EQ(all.at(all.size() - 3).name, "norm.bias") << name;
    EXPECT_EQ(all.back().name, "head.bias") << name;
  }
}

TEST(Check, NamesWhatIsOutOfRange) {
  const auto message = [](const std::function<void(VitConfig&)>& change) {
    VitConfig config;
    change(config);
    return error_text([&] { check(config); });
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(message([](VitConfig&) {}), "no error");
  EXPECT_EQ(message([](VitConfig& c) { c.heads = 7; }),
            "[arch.check] heads is 7, which does not divide width 768: expected a divisor of width; nearest: "
            "6 and 8");
  EXPECT_EQ(message([](VitConfig& c) { c.image_size = 225; }),
            "[arch.check] image_size is 225: expected a multiple of patch_size (16); nearest: 224 and 240");
  EXPECT_EQ(message([](VitConfig& c) { c.class_token = false; }),
            "[arch.check] pool is \"cls\", but class_token is false: expected a class token; set class_token "
            "= true, or pool = \"gap\" or \"map\"");
  EXPECT_EQ(message([](VitConfig& c) {
              c.position_embedding = PositionEmbedding::kSinCos2d;
              c.width = 6;
              c.heads = 3;
            }),
            "[arch.check] position_embedding is \"sincos2d\", but width is 6: expected a width that is a "
            "multiple of 4");
  EXPECT_EQ(message([](VitConfig& c) { c.depth = 0; }), "[arch.check] depth is 0: expected 1 to 4096");
  EXPECT_EQ(message([](VitConfig& c) { c.registers = -1; }),
            "[arch.check] registers is -1: expected 0 to 65536");
  EXPECT_EQ(message([](VitConfig& c) { c.drop_path = 1.0; }),
            "[arch.check] drop_path is 1: expected at least 0 and below 1");
  EXPECT_EQ(message([&](VitConfig& c) { c.dropout = nan; }),
            "[arch.check] dropout is nan: expected at least 0 and below 1");
  EXPECT_EQ(message([](VitConfig& c) { c.layer_scale = -1; }),
            "[arch.check] layer_scale is -1: expected 0 (none) to 1e6");
  EXPECT_EQ(message([](VitConfig& c) { c.norm_epsilon = 0; }),
            "[arch.check] norm_epsilon is 0: expected above 0 and at most 1");
}

// Nothing overflows at the largest values that are let through.
TEST(Check, LargestConfigCountsIn64Bits) {
  VitConfig config;
  config.image_size = 1 << 16;
  config.patch_size = 1;
  config.channels = 1024;
  config.width = 1 << 20;
  config.heads = 1 << 16;
  config.mlp_width = 1 << 22;
  config.classes = 1 << 27;
  config.depth = 4096;
  check(config);
  const double block = 4.0 * std::pow(2, 40) + 2.0 * std::pow(2, 42);
  EXPECT_NEAR(
      static_cast<double>(parameter_count(config)) / (4096 * block + std::pow(2, 52) + std::pow(2, 47)), 1.0,
      1e-3);
  EXPECT_GT(forward_flops(config), 1e27);
}

// Of all units, what is computed; the head of these models reads the class token alone.
TEST(UnitFlops, AddUpToTheModels) {
  for (const char* family : {"vit", "resnet", "resmlp"}) {
    const ModelConfig config = default_model(family);
    const std::vector<double> units = unit_flops(config);
    ASSERT_EQ(units.size(), unit_names(config).size()) << family;
    EXPECT_DOUBLE_EQ(3 * std::accumulate(units.begin(), units.end(), 0.0), training_flops(config)) << family;
  }
  const std::vector<double> vit = unit_flops(default_model("vit"));
  EXPECT_LT(vit[vit.size() - 2], 0.5 * vit[1]) << "the last block makes one token";
  EXPECT_EQ(vit[1], vit[2]);
}

}  // namespace
}  // namespace tessera::arch
