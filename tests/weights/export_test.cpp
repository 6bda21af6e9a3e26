// What is exported to a family and read back is bit for bit what it was.
#include "tessera/weights/export.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tessera/checkpoint/tools.h"
#include "tests/error_text.h"
#include "tests/weights/foreign.h"

namespace tessera::weights {
namespace {
namespace fs = std::filesystem;
using namespace testing;

struct Case {
  const char* from;
  Family to;
};

class Export : public ::testing::TestWithParam<Case> {
 protected:
  const TemporaryFolder folder{"tessera-weights"};
};

TEST_P(Export, AndImportIsBitwise) {
  const Model before = open_fixture(GetParam().from);
  const Family to = GetParam().to;
  const bool npz = to == Family::kGoogle || to == Family::kBigVision;
  const fs::path output = folder.path() / (npz ? "x.npz" : "x");
  // By way of a checkpoint of three ranks, as a training run leaves it.
  const auto saved = checkpoint::reshard(*before.tensors, folder.path() / "run" / "checkpoints", 3);
  const Model ours = open_model(folder.path() / "run", {.from = {}, .ema = true, .heads = 2});
  EXPECT_EQ(ours.file, saved);
  export_model(std::move(open_file(saved).source), before.description, to, output);
  const Model after = open_model(output, {.from = {}, .ema = true, .heads = npz ? 0 : 2});
  EXPECT_EQ(after.description.family, to);
  arch::VitConfig expected = before.description.config;
  if (to != Family::kHuggingFace) expected.norm_epsilon = 1e-6;
  EXPECT_EQ(after.description.config, expected);
  if (to == Family::kHuggingFace) {
    EXPECT_EQ(after.description.pixels.mean, before.description.pixels.mean);
    if (!before.description.classes.empty()) {
      EXPECT_EQ(after.description.classes, before.description.classes);
    }
  }
  const auto wanted = read_all(*before.tensors);
  auto found = read_all(*after.tensors);
  if (to == Family::kBigVision && expected.class_token) {
    // Its positions have no row for the class token, which is added to the token instead.
    for (size_t i = 0; i < 16; ++i) {
      EXPECT_EQ(found["cls_token"][i], wanted.at("cls_token")[i] + wanted.at("pos_embed")[i]);
      EXPECT_EQ(found["pos_embed"][i], 0.0F);
      found["cls_token"][i] = wanted.at("cls_token")[i];
      found["pos_embed"][i] = wanted.at("pos_embed")[i];
    }
  }
  EXPECT_EQ(found, wanted);
}

INSTANTIATE_TEST_SUITE_P(
    Families, Export,
    ::testing::Values(
        Case{"timm.safetensors", Family::kTimm}, Case{"timm.safetensors", Family::kTorchvision},
        Case{"timm.safetensors", Family::kHuggingFace}, Case{"timm.safetensors", Family::kGoogle},
        Case{"timm.safetensors", Family::kBigVision}, Case{"torchvision_tanh.pth", Family::kTorchvision},
        Case{"torchvision_tanh.pth", Family::kGoogle}, Case{"big_vision.npz", Family::kBigVision},
        Case{"big_vision.npz", Family::kTimm}, Case{"big_vision_gap.npz", Family::kBigVision},
        Case{"big_vision_gap.npz", Family::kGoogle}, Case{"big_vision_gap.npz", Family::kTimm},
        Case{"deit_distilled.safetensors", Family::kTimm}, Case{"timm_training.pth.tar", Family::kTimm},
        Case{"hf", Family::kHuggingFace}, Case{"google.npz", Family::kHuggingFace}),
    [](const auto& info) {
      std::string name = info.param.from + std::string("_to_") + to_string(info.param.to);
      std::replace(name.begin(), name.end(), '.', '_');
      return name;
    });

TEST(ExportDtypes, HalfNumbersAreTheNearest) {
  const TemporaryFolder folder("tessera-weights");
  const Model before = open_fixture("google.npz");
  const auto wanted = read_all(*before.tensors);
  for (const auto& [dtype, error] : {std::pair("F16", 0x1p-11), std::pair("BF16", 0x1p-8)}) {
    const fs::path output = folder.path() / "half.npz";
    // Through timm's file: what is exported need not lie in a checkpoint.
    auto source = std::shared_ptr<checkpoint::TensorSource>(std::move(open_fixture("google.npz").tensors));
    export_model(source, before.description, Family::kGoogle, output, dtype);
    for (const auto& [name, numbers] : read_all(*open_model(output).tensors)) {
      for (size_t i = 0; i < numbers.size(); ++i)
        ASSERT_NEAR(numbers[i], wanted.at(name)[i], error * std::abs(wanted.at(name)[i]) + 1e-7) << name;
    }
  }
  EXPECT_EQ(error_text([&] {
              export_model(std::move(open_fixture("google.npz").tensors), before.description, Family::kGoogle,
                           folder.path() / "x.npz", "I8");
            }),
            "[checkpoint.consolidate] a dtype to convert to (F32, BF16, F16): found \"I8\"");
}

TEST(ExportErrors, ModelsThatAFamilyHasNotAreNamed) {
  const auto error = [](const auto& mapping, const auto& change) {
    arch::VitConfig config = small_config();
    change(config);
    return error_text([&] { mapping(config); });
  };
  const auto registers = [](arch::VitConfig& c) { c.registers = 4; };
  const auto average = [](arch::VitConfig& c) { c.pool = arch::Pool::kAverage; };
  const auto tanh = [](arch::VitConfig& c) { c.head = arch::Head::kTanh; };
  const auto scale = [](arch::VitConfig& c) { c.layer_scale = 1; };
  EXPECT_EQ(error(torchvision_mapping, registers),
            "[weights.export] a model that torchvision has: found register tokens (export to timm instead)");
  EXPECT_EQ(error(torchvision_mapping, average),
            "[weights.export] a model that torchvision has: found another pool than the class token (export "
            "to timm "
            "instead)");
  EXPECT_EQ(error(hugging_face_mapping, tanh),
            "[weights.export] a model that transformers' ViT has: found a head of two layers (export to timm "
            "instead)");
  EXPECT_EQ(error(hugging_face_mapping, scale),
            "[weights.export] a model that transformers' ViT has: found LayerScale (export to timm instead)");
  EXPECT_EQ(error(google_mapping, average),
            "[weights.export] a model that the original ViT has: found a norm after the average of the "
            "patches (export to "
            "timm instead)");
  const auto taught = [](arch::VitConfig& c) { c.distillation_token = true; };
  EXPECT_EQ(error(google_mapping, taught),
            "[weights.export] a model that the original ViT has: found a distillation token (export to timm "
            "instead)");
  EXPECT_EQ(error(torchvision_mapping, taught),
            "[weights.export] a model that torchvision has: found a distillation token (export to timm "
            "instead)");
  EXPECT_EQ(error(big_vision_mapping, registers),
            "[weights.export] a model that big_vision has: found register tokens (export to timm instead)");
  EXPECT_EQ(
      error_text([] { family_of("torchvison"); }),
      "[weights.family] one of timm, torchvision, hf, npz, big_vision: found \"torchvison\" (did you mean "
      "\"torchvision\"?)");
}

}  // namespace
}  // namespace tessera::weights
