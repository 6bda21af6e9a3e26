// SPDX-License-Identifier: Apache-2.0
// Another resolution, other classes, another head; positions beside those of timm and SciPy.
#include "tessera/weights/finetune.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/weights/channels.h"
#include "tessera/weights/patches.h"
#include "tests/error_text.h"
#include "tests/weights/foreign.h"
#include "tests/weights/formula.h"

namespace tessera::weights {
namespace {
using namespace testing;

TEST(Positions, AreThoseOfTimmAndOfScipy) {
  const auto expected =
      nlohmann::json::parse(std::ifstream(TESSERA_SOURCE_DIR "/tests/weights/positions_expected.json"));
  const int64_t width = expected["width"];
  for (const auto& one : expected["cases"]) {
    const int64_t from = one["from"], to = one["to"];
    const auto rows = formula(static_cast<size_t>(from * from * width));
    for (const char* how : {"bicubic", "linear"}) {
      const auto found = resample_positions(rows, from, to, width, resampling_of(how));
      const auto wanted = one[how].get<std::vector<double>>();
      ASSERT_EQ(found.size(), wanted.size());
      for (size_t i = 0; i < wanted.size(); ++i)
        ASSERT_NEAR(found[i], wanted[i], 2e-6) << how << ' ' << from << " to " << to << ", element " << i;
    }
  }
  EXPECT_EQ(error_text([] { resampling_of("linaer"); }),
            "[weights.positions] the resampling is \"linaer\": expected bicubic or linear; did you mean "
            "\"linear\"?");
}

/// Every tensor of a model holds its own number of the formula.
class Numbered final : public checkpoint::TensorSource {
 public:
  explicit Numbered(const arch::ModelConfig& config) {
    for (const auto& spec : arch::parameters(config)) {
      if (spec.buffer || (config.classes() == 0 && spec.name.starts_with("head."))) continue;
      tensors_.push_back({"param/" + spec.name, "F32", spec.shape});
      numbers_.push_back(formula(static_cast<size_t>(spec.numel()) + tensors_.size()));
      numbers_.back().erase(numbers_.back().begin(),
                            numbers_.back().begin() + static_cast<std::ptrdiff_t>(tensors_.size()));
    }
  }
  const std::vector<checkpoint::Manifest::Tensor>& tensors() const override { return tensors_; }
  const checkpoint::Progress& progress() const override { return progress_; }
  void read(size_t tensor, int64_t begin, std::span<std::byte> out) override {
    std::memcpy(out.data(), numbers_.at(tensor).data() + begin, out.size());
  }

 private:
  std::vector<checkpoint::Manifest::Tensor> tensors_;
  std::vector<std::vector<float>> numbers_;
  checkpoint::Progress progress_;
};

class Finetune : public ::testing::Test {
 protected:
  std::string error(const FinetuneOptions& options = {}) {
    return error_text([&] { FinetunedSource(std::make_shared<Numbered>(from), from, to, options); });
  }
  arch::VitConfig from = small_config(), to = small_config();
};

TEST_F(Finetune, OnlyWhatMustChangeChanges) {
  from.registers = to.registers = 3;
  from.head = arch::Head::kTanh;
  to.image_size = 20;
  to.classes = 7;
  const auto source = std::make_shared<Numbered>(from);
  FinetunedSource finetuned(source, from, to,
                            {.positions = Resampling::kLinear, .head = HeadStart::kAuto, .head_bias = -3});
  EXPECT_EQ(finetuned.changes(),
            std::vector<std::string>({"pos_embed: 3 x 3 -> 5 x 5 patches, linear",
                                      "head.weight: 5 -> 7 classes, all 0",
                                      "head.bias: 5 -> 7 classes, all -3", "pre_logits: dropped"}));
  const auto before = read_all(*source), after = read_all(finetuned);
  ASSERT_EQ(after.size(), arch::parameters(to).size());
  size_t same = 0;
  for (size_t i = 0; i < finetuned.tensors().size(); ++i) {
    const std::string name = finetuned.tensors()[i].name.substr(6);
    if (!finetuned.is_same(i)) continue;
    EXPECT_EQ(after.at(name), before.at(name)) << name;
    ++same;
  }
  EXPECT_EQ(same, after.size() - 3);
  EXPECT_EQ(after.at("head.weight"), std::vector<float>(7 * 16, 0.0F));
  EXPECT_EQ(after.at("head.bias"), std::vector<float>(7, -3.0F));
  const auto &old = before.at("pos_embed"), &now = after.at("pos_embed");
  ASSERT_EQ(now.size(), (4U + 25U) * 16);
  EXPECT_TRUE(std::equal(now.begin(), now.begin() + 4 * 16, old.begin()))
      << "class token and registers keep theirs";
  EXPECT_TRUE(std::equal(now.end() - 16, now.end(), old.end() - 16)) << "corners stay corners";
  EXPECT_FALSE(std::equal(now.begin() + 5 * 16, now.begin() + 6 * 16, old.begin() + 5 * 16));
}

TEST_F(Finetune, TheSameModelIsTheSame) {
  FinetunedSource finetuned(std::make_shared<Numbered>(from), from, to, {});
  EXPECT_TRUE(finetuned.changes().empty());
  Numbered source(from);
  EXPECT_EQ(read_all(finetuned), read_all(source));
}

TEST_F(Finetune, HeadsAreKeptZeroedOrLeftToTheTraining) {
  const auto source = std::make_shared<Numbered>(from);
  FinetunedSource zero(source, from, to, {.positions = {}, .head = HeadStart::kZero});
  EXPECT_EQ(read_all(zero).at("head.weight"), std::vector<float>(5 * 16, 0.0F));
  FinetunedSource fresh(source, from, to, {.positions = {}, .head = HeadStart::kFresh});
  for (size_t i = 0; i < fresh.tensors().size(); ++i)
    EXPECT_EQ(fresh.is_fresh(i), fresh.tensors()[i].name.starts_with("param/head."))
        << fresh.tensors()[i].name;
  from.classes = 0;
  FinetunedSource headless(std::make_shared<Numbered>(from), from, to, {});
  EXPECT_EQ(read_all(headless).at("head.bias"), std::vector<float>(5, 0.0F));
  EXPECT_EQ(headless.changes().at(0), "head.weight: 0 -> 5 classes, all 0");
}

TEST_F(Finetune, AnotherPoolsNormBeginsAsTheIdentity) {
  to.pool = arch::Pool::kAverage;
  FinetunedSource finetuned(std::make_shared<Numbered>(from), from, to, {});
  EXPECT_EQ(read_all(finetuned).at("fc_norm.weight"), std::vector<float>(16, 1.0F));
  EXPECT_EQ(read_all(finetuned).at("fc_norm.bias"), std::vector<float>(16, 0.0F));
  EXPECT_FALSE(read_all(finetuned).contains("norm.weight"));
}

TEST_F(Finetune, ADistilledModelKeepsBothHeads) {
  from.distillation_token = to.distillation_token = true;
  to.image_size = 20;
  to.classes = 7;
  const auto source = std::make_shared<Numbered>(from);
  FinetunedSource finetuned(source, from, to, {});
  const auto before = read_all(*source), after = read_all(finetuned);
  EXPECT_EQ(after.at("head_dist.weight"), std::vector<float>(7 * 16, 0.0F));
  EXPECT_EQ(after.at("dist_token"), before.at("dist_token"));
  const auto &old = before.at("pos_embed"), &now = after.at("pos_embed");
  ASSERT_EQ(now.size(), (2U + 25U) * 16);
  EXPECT_TRUE(std::equal(now.begin(), now.begin() + 2 * 16, old.begin()));
}

TEST_F(Finetune, WhatIsComputedIsNotLookedFor) {
  to.position_embedding = arch::PositionEmbedding::kSinCos2d;
  FinetunedSource dropped(std::make_shared<Numbered>(from), from, to, {});
  EXPECT_EQ(dropped.changes(),
            std::vector<std::string>{"pos_embed: dropped, the model computes its positions"});
  EXPECT_FALSE(read_all(dropped).contains("pos_embed"));
  from = to;
  to.image_size = 20;
  FinetunedSource both(std::make_shared<Numbered>(from), from, to, {});
  EXPECT_TRUE(both.changes().empty());
  to.position_embedding = arch::PositionEmbedding::kLearned;
  EXPECT_EQ(
      error(),
      "[weights.finetune] the weights have no pos_embed [1, 26, 16]: expected weights of the whole model");
}

// 12 px in patches of 4 become 20 px in patches of 5; 3 channels one.
TEST_F(Finetune, OtherChannelsAndPatchesChangeTheFirstLayer) {
  to.channels = 1;
  to.patch_size = 5;
  to.image_size = 20;
  const auto source = std::make_shared<Numbered>(from);
  FinetunedSource finetuned(source, from, to, {});
  EXPECT_EQ(finetuned.changes(),
            std::vector<std::string>(
                {"pos_embed: 3 x 3 -> 4 x 4 patches, bicubic",
                 "patch_embed.proj.weight: 4 x 4 -> 5 x 5 pixels, pseudo-inverse of the bicubic resize",
                 "patch_embed.proj.weight: 3 -> 1 channels, summed"}));
  const auto before = read_all(*source), after = read_all(finetuned);
  EXPECT_EQ(after.at("patch_embed.proj.weight"),
            adapt_channels(resample_patches(before.at("patch_embed.proj.weight"), 4, 5), 3, 1, 25));
  EXPECT_EQ(after.at("patch_embed.proj.bias"), before.at("patch_embed.proj.bias"));
  EXPECT_EQ(after.at("blocks.0.attn.qkv.weight"), before.at("blocks.0.attn.qkv.weight"));
  // A part of it, as a rank reads its own.
  for (size_t i = 0; i < finetuned.tensors().size(); ++i) {
    if (finetuned.tensors()[i].name != "param/patch_embed.proj.weight") continue;
    std::vector<float> part(7);
    finetuned.read(i, 30, std::as_writable_bytes(std::span(part)));
    EXPECT_TRUE(std::equal(part.begin(), part.end(), after.at("patch_embed.proj.weight").begin() + 30));
  }
}

TEST_F(Finetune, FirstLayersOfOtherFamilies) {
  const auto changes = [](const arch::ModelConfig& a, const arch::ModelConfig& b) {
    return FinetunedSource(std::make_shared<Numbered>(a), a, b, {}).changes();
  };
  arch::ResNetConfig resnet;
  resnet.blocks = {1};
  resnet.base_width = 4;
  arch::ResNetConfig grey = resnet;
  grey.channels = 1;
  EXPECT_EQ(changes(resnet, grey), std::vector<std::string>{"conv1.weight: 3 -> 1 channels, summed"});
  arch::ResMlpConfig mlp;
  mlp.image_size = 32;
  mlp.depth = 1;
  arch::ResMlpConfig finer = mlp;  // as many patches
  finer.image_size = 16;
  finer.patch_size = 8;
  EXPECT_EQ(changes(mlp, finer),
            std::vector<std::string>{
                "stem.proj.weight: 16 x 16 -> 8 x 8 pixels, pseudo-inverse of the bicubic resize"});
  EXPECT_EQ(changes(grey, resnet),
            std::vector<std::string>{"conv1.weight: 1 -> 3 channels, repeated times 1/3"});
}

TEST_F(Finetune, ModelsOfOtherFamilies) {
  arch::ResNetConfig resnet, other;
  resnet.blocks = other.blocks = {1};
  resnet.base_width = other.base_width = 4;
  resnet.classes = 5;
  other.classes = 3;
  const auto source = std::make_shared<Numbered>(resnet);
  FinetunedSource finetuned(source, resnet, other, {.positions = {}, .head = {}, .head_bias = 2});
  EXPECT_EQ(finetuned.changes(),
            std::vector<std::string>({"fc.weight: 5 -> 3 classes, all 0", "fc.bias: 5 -> 3 classes, all 2"}));
  const auto before = read_all(*source), after = read_all(finetuned);
  EXPECT_EQ(after.at("layer1.0.conv1.weight"), before.at("layer1.0.conv1.weight"));
  const auto message = [&](const arch::ModelConfig& a, const arch::ModelConfig& b) {
    return error_text([&] { FinetunedSource(std::make_shared<Numbered>(a), a, b, {}); });
  };
  EXPECT_EQ(message(resnet, from),
            "[weights.finetune] the model's family is vit, but that of the weights is resnet: expected a "
            "model that differs only in image_size, patch_size, channels, classes, pool and head");
  arch::ResMlpConfig mlp, larger;
  mlp.image_size = 32;
  larger.image_size = 48;
  mlp.depth = larger.depth = 1;
  EXPECT_EQ(message(mlp, larger),
            "[weights.finetune] blocks.0.linear_tokens.weight of the weights is [4, 4]: expected [9, 9]; use "
            "weights of a model of the same sizes");
}

TEST_F(Finetune, OtherModelsAreRefused) {
  to.depth = 3;
  EXPECT_EQ(error(),
            "[weights.finetune] the model's depth is 3, but that of the weights is 2: expected a model that "
            "differs only in image_size, patch_size, channels, classes, pool and head");
  to = from;
  to.classes = 6;
  EXPECT_EQ(error({.positions = {}, .head = HeadStart::kKeep}),
            "[weights.finetune] the model has 6 classes, but the head that is kept has 5: expected as many "
            "classes; choose another start of the head");
  to = from;
  to.head = arch::Head::kTanh;
  EXPECT_EQ(error(),
            "[weights.finetune] the weights have no pre_logits.fc.weight [16, 16] (and 1 more tensors are "
            "missing): expected weights of the whole model");
  EXPECT_EQ(error_text([] { head_start_of("zeros"); }),
            "[weights.finetune] the start of the head is \"zeros\": expected one of auto, keep, zero, fresh; "
            "did you mean \"zero\"?");
}

}  // namespace
}  // namespace tessera::weights
