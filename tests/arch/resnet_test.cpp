// SPDX-License-Identifier: Apache-2.0
// ResNet's numbers are torchvision's: `resnet_counts.py` prints them.
#include "tessera/arch/resnet.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "tessera/arch/model.h"
#include "tests/error_text.h"

namespace tessera::arch {
namespace {

// Parameters and multiply-adds (torchvision's published "GFLOPS").
TEST(ResNet, CountsAreTorchvisions) {
  const std::map<std::string, std::pair<int64_t, double>> published = {{"resnet18", {11689512, 1.814}},
                                                                       {"resnet34", {21797672, 3.664}},
                                                                       {"resnet50", {25557032, 4.089}},
                                                                       {"resnet101", {44549160, 7.801}},
                                                                       {"resnet152", {60192808, 11.514}}};
  ASSERT_EQ(resnet_ladder().size(), published.size());
  for (const auto& [name, config] : resnet_ladder()) {
    const auto [count, gmacs] = published.at(name);
    EXPECT_EQ(parameter_count(config), count) << name;
    EXPECT_NEAR(forward_flops(config) / 2e9, gmacs, 0.0005) << name;
    EXPECT_NO_THROW(check(config));
    EXPECT_EQ(resnet_config(name), config);
  }
}

TEST(ResNet, NamesAndShapesAreTorchvisions) {
  std::map<std::string, std::vector<int64_t>> found;
  for (const auto& spec : parameters(resnet_config("resnet50"))) found[spec.name] = spec.shape;
  EXPECT_EQ(found.size(), 161U);
  EXPECT_EQ(found.at("conv1.weight"), (std::vector<int64_t>{64, 3, 7, 7}));
  EXPECT_EQ(found.at("layer1.0.downsample.0.weight"), (std::vector<int64_t>{256, 64, 1, 1}));
  EXPECT_EQ(found.at("layer2.0.conv2.weight"), (std::vector<int64_t>{128, 128, 3, 3}));
  EXPECT_EQ(found.at("layer4.2.bn3.bias"), (std::vector<int64_t>{2048}));
  EXPECT_EQ(found.at("fc.weight"), (std::vector<int64_t>{1000, 2048}));
  EXPECT_FALSE(found.contains("layer1.1.downsample.0.weight"));
  std::set<std::string> buffers_found;
  for (const auto& spec : buffers(resnet_config("resnet18"))) buffers_found.insert(spec.name);
  EXPECT_EQ(buffers_found.size(), 60U);  // of 20 norms
  EXPECT_TRUE(buffers_found.contains("layer2.0.downsample.1.num_batches_tracked"));
  for (const auto& spec : parameters(resnet_config("resnet18"))) {
    EXPECT_FALSE(spec.name.starts_with("layer1.0.downsample")) << "no shapes change there";
  }
}

TEST(ResNet, InitialValuesAreKaimings) {
  ResNetConfig config = resnet_config("resnet50");
  config.zero_init_residual = true;
  for (const auto& spec : parameters(config)) {
    if (spec.name == "layer2.0.conv2.weight") {
      EXPECT_EQ(spec.init, Init::kNormal);
      EXPECT_EQ(spec.init_value, std::sqrt(2.0 / (128 * 9)));
    }
    if (spec.name == "fc.bias") {
      EXPECT_EQ(spec.init_value, 1 / std::sqrt(2048.0));
    }
    if (spec.name.ends_with(".weight") && spec.shape.size() == 1) {
      EXPECT_EQ(spec.init, spec.name.ends_with("bn3.weight") ? Init::kZero : Init::kOne) << spec.name;
    }
    EXPECT_EQ(spec.decay, spec.shape.size() > 1) << spec.name;
  }
}

TEST(ResNet, BlocksHalveTheImageOnceAStage) {
  ResNetConfig config = resnet_config("resnet34");
  config.image_size = 225;  // odd sizes round up
  const auto list = blocks(config);
  ASSERT_EQ(list.size(), 16U);
  EXPECT_EQ(list.front().in_size, 57);
  EXPECT_EQ(list.back().out_size, 8);
  EXPECT_EQ(list[3].name, "layer2.0");
  EXPECT_TRUE(list[3].projects());
  EXPECT_FALSE(list[4].projects());
  EXPECT_EQ(unit_names(config).front(), "stem");
  EXPECT_EQ(unit_names(config)[4], "layer2.0");
  EXPECT_EQ(unit_names(config).size(), 18U);
}

// By hand: one basic block of 2 channels on 2 x 2 pixels.
TEST(ResNet, KeptActivations) {
  ResNetConfig config;
  config.image_size = 8;
  config.channels = 1;
  config.classes = 5;
  config.bottleneck = false;
  config.blocks = {1};
  config.base_width = 2;
  const auto kept = activations(config, 4);
  ASSERT_EQ(kept.units.size(), 3U);
  EXPECT_EQ(kept.units[0].input, 0);
  EXPECT_EQ(kept.units[0].all, 2 * 4 * 32 + 8 * 8);  // convolution and ReLU of 2 x 4 x 4, the pool's places
  EXPECT_EQ(kept.units[1].input, 4 * 8);
  EXPECT_EQ(kept.units[1].all, 4 * 8 * 4);    // input, both convolutions, the ReLU between
  EXPECT_EQ(kept.units[1].again, 4 * 8 * 4);  // these without the input, and the last ReLU
  EXPECT_EQ(kept.units[2].all, 4 * 8 + 4 * 2 + 2 * 4 * 5);
  EXPECT_EQ(kept.working, 2 * 4 * 32);
  config.batch_norm_sync = true;
  EXPECT_EQ(activations(config, 2).units[1].all, 2 * 8 + 4 * 16 + 2 * 8) << "what norms keep is fp32";
}

TEST(ResNet, Errors) {
  const auto message = [](void (*change)(ResNetConfig&)) {
    ResNetConfig config;
    change(config);
    return error_text([&] { check(config); });
  };
  EXPECT_EQ(message([](ResNetConfig&) {}), "no error");
  EXPECT_EQ(message([](ResNetConfig& c) { c.blocks = {}; }),
            "[arch.check] the number of stages in blocks is 0: expected 1 to 8");
  EXPECT_EQ(message([](ResNetConfig& c) {
              c.blocks = {3, 0};
            }),
            "[arch.check] an element of blocks is 0: expected 1 to 1024");
  EXPECT_EQ(message([](ResNetConfig& c) { c.batch_norm_momentum = 0; }),
            "[arch.check] batch_norm_momentum is 0: expected above 0 and at most 1");
  EXPECT_EQ(message([](ResNetConfig& c) { c.batch_norm_epsilon = NAN; }),
            "[arch.check] batch_norm_epsilon is nan: expected above 0 and at most 1");
  EXPECT_EQ(error_text([] { resnet_config("resnet5"); }),
            "[arch.resnet_config] unknown model \"resnet5\": expected the name of a ResNet, like resnet50; "
            "did you mean \"resnet50\"?");
}

TEST(Model, AFamilyIsFoundByItsModelsNames) {
  EXPECT_EQ(model_config("resnet50").family(), "resnet");
  EXPECT_EQ(model_config("S/16").family(), "vit");
  EXPECT_EQ(families(), (std::vector<std::string>{"vit", "resnet", "resmlp"}));
  for (const auto& family : families()) EXPECT_EQ(default_model(family).family(), family);
  EXPECT_EQ(model_config("resmlp_24_224").family(), "resmlp");
  EXPECT_EQ(model_ladder().size(), size_ladder().size() + resnet_ladder().size() + resmlp_ladder().size());
  EXPECT_EQ(model_ladder().back().name, "resmlp_big_24_224");
  ModelConfig model = resnet_config("resnet18");
  model.classes() = 10;
  EXPECT_EQ(model.as<ResNetConfig>().classes, 10);
  EXPECT_EQ(parameters(model).back().shape, std::vector<int64_t>{10});
  EXPECT_NE(model, ModelConfig(resnet_config("resnet18")));
  EXPECT_EQ(ModelConfig(), ModelConfig(VitConfig{}));
  EXPECT_NE(error_text([] { model_config("S/x"); }).find("[arch.vit_config] "), std::string::npos);
}

TEST(Model, UnitsOfSpecsAreTheUnits) {
  for (const auto& [name, config] : model_ladder()) {
    const auto names = unit_names(config);
    const std::set<std::string> units(names.begin(), names.end());
    EXPECT_EQ(units.size(), names.size()) << name;
    EXPECT_EQ(activations(config, 2).units.size(), names.size()) << name;
    for (const auto& spec : parameters(config)) EXPECT_TRUE(units.contains(spec.unit)) << spec.name;
    for (const auto& spec : buffers(config)) EXPECT_TRUE(units.contains(spec.unit)) << spec.name;
  }
}

}  // namespace
}  // namespace tessera::arch
