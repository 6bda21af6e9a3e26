// SPDX-License-Identifier: Apache-2.0
// Files that timm, torchvision, transformers and NumPy wrote (fixtures/, made by make_fixtures.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "tests/error_text.h"
#include "tests/weights/foreign.h"
#include "tests/weights/formula.h"

namespace tessera::weights {
namespace {
namespace fs = std::filesystem;
using namespace testing;

struct ImportCase {
  const char* name;
  Family family;
  arch::Pool pool;
};

class Import : public ::testing::TestWithParam<ImportCase> {};

TEST_P(Import, FamilyAndSizesAreFoundOut) {
  const Model model = open_fixture(GetParam().name);
  EXPECT_EQ(model.description.family, GetParam().family);
  arch::VitConfig expected = small_config();
  expected.pool = GetParam().pool;
  expected.norm_before_pool = std::string(GetParam().name).find("gap") != std::string::npos;
  expected.class_token = expected.pool != arch::Pool::kAttention && !expected.norm_before_pool;
  expected.distillation_token = std::string(GetParam().name).find("distilled") != std::string::npos;
  if (std::string(GetParam().name).find("tanh") != std::string::npos) expected.head = arch::Head::kTanh;
  if (expected.pool == arch::Pool::kClassToken && GetParam().family == Family::kHuggingFace)
    expected.norm_epsilon = 1e-12;
  EXPECT_EQ(model.description.config, expected);
  ASSERT_EQ(model.tensors->tensors().size(), arch::parameters(expected).size());
  for (const auto& spec : arch::parameters(expected)) {
    const auto& tensors = model.tensors->tensors();
    const auto at = std::find_if(tensors.begin(), tensors.end(),
                                 [&](const auto& tensor) { return tensor.name == "param/" + spec.name; });
    ASSERT_NE(at, tensors.end()) << spec.name;
    EXPECT_EQ(at->shape, spec.shape) << spec.name;
  }
}

TEST_P(Import, AnyPartOfATensorIsThatPartOfTheWhole) {
  const Model model = open_fixture(GetParam().name);
  for (size_t i = 0; i < model.tensors->tensors().size(); ++i) {
    const auto whole = read(*model.tensors, i);
    for (const size_t begin : {size_t{0}, whole.size() / 3, whole.size() - 1}) {
      std::vector<float> part((whole.size() - begin + 1) / 2);
      model.tensors->read(i, static_cast<int64_t>(begin), std::as_writable_bytes(std::span(part)));
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(begin)))
          << model.tensors->tensors()[i].name;
    }
  }
}

// Every second dim is cut, and the flattened box: what a rank with a slice of a tensor reads of it.
TEST_P(Import, AnyRegionOfATensorIsThatRegionOfTheWhole) {
  const Model model = open_fixture(GetParam().name);
  for (size_t i = 0; i < model.tensors->tensors().size(); ++i) {
    const auto& tensor = model.tensors->tensors()[i];
    const auto whole = read(*model.tensors, i);
    Box box = Box::whole(tensor.shape);
    for (size_t d = box.dims.size(); d > 0; d -= std::min<size_t>(d, 2)) {
      box.dims[d - 1] = {tensor.shape[d - 1] / 3, (tensor.shape[d - 1] * 3 + 3) / 4};
    }
    std::vector<float> expected;  // elements whose every coordinate is in its range
    for (size_t at = 0; at < whole.size(); ++at) {
      bool inside = true;
      auto rest = static_cast<int64_t>(at);
      for (size_t d = box.dims.size(); d-- > 0; rest /= tensor.shape[d]) {
        const int64_t index = rest % tensor.shape[d];
        inside = inside && index >= box.dims[d].begin && index < box.dims[d].end;
      }
      if (inside) expected.push_back(whole[at]);
    }
    const auto count = static_cast<int64_t>(expected.size());
    for (const Region& region : {Region{box, 0, count}, Region{box, count / 3, count - count / 4}}) {
      std::vector<float> found(static_cast<size_t>(region.numel()));
      checkpoint::read_region(*model.tensors, i, region, std::as_writable_bytes(std::span(found)));
      EXPECT_TRUE(std::equal(found.begin(), found.end(), expected.begin() + region.begin))
          << tensor.name << ' ' << to_string(region);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Fixtures, Import,
    ::testing::Values(ImportCase{"timm.safetensors", Family::kTimm, arch::Pool::kClassToken},
                      ImportCase{"timm_training.pth.tar", Family::kTimm, arch::Pool::kAverage},
                      ImportCase{"torchvision.pth", Family::kTorchvision, arch::Pool::kClassToken},
                      ImportCase{"torchvision_tanh.pth", Family::kTorchvision, arch::Pool::kClassToken},
                      ImportCase{"hf", Family::kHuggingFace, arch::Pool::kClassToken},
                      ImportCase{"hf_sharded", Family::kHuggingFace, arch::Pool::kClassToken},
                      ImportCase{"google.npz", Family::kGoogle, arch::Pool::kClassToken},
                      ImportCase{"big_vision.npz", Family::kBigVision, arch::Pool::kAttention},
                      ImportCase{"big_vision_gap.npz", Family::kBigVision, arch::Pool::kAverage},
                      ImportCase{"deit_distilled.safetensors", Family::kTimm, arch::Pool::kClassToken},
                      ImportCase{"big_vision_scan.npz", Family::kBigVision, arch::Pool::kAttention}),
    [](const auto& info) {
      std::string name = info.param.name;
      std::replace(name.begin(), name.end(), '.', '_');
      return name;
    });

TEST(ImportedAlike, ScannedBlocksAreTheBlocks) {
  EXPECT_EQ(read_all(*open_fixture("big_vision_scan.npz").tensors),
            read_all(*open_fixture("big_vision.npz").tensors));
}

TEST(ImportedAlike, ShardedFilesAreTheOne) {
  EXPECT_EQ(read_all(*open_fixture("hf_sharded").tensors), read_all(*open_fixture("hf").tensors));
  EXPECT_EQ(read_all(*open_fixture("hf_sharded/model.safetensors.index.json").tensors),
            read_all(*open_fixture("hf/model.safetensors").tensors));
}

TEST(Imported, WhatAFolderOfHuggingFaceSays) {
  const Model model = open_fixture("hf");
  EXPECT_EQ(model.description.classes, std::vector<std::string>({"apple", "pear", "plum", "quince", "fig"}));
  EXPECT_EQ(model.description.pixels.mean, std::vector<float>(3, 0.5F));
  EXPECT_EQ(model.description.pixels.eval_crop, data::EvalCrop::kSquash);
}

TEST(Imported, AveragedWeightsOfATrainingCheckpointUnlessToldOtherwise) {
  const Model averaged = open_fixture("timm_training.pth.tar"),
              trained = open_fixture("timm_training.pth.tar", false);
  EXPECT_EQ(averaged.description.notes.back(), "the weights are those of state_dict_ema");
  EXPECT_EQ(trained.description.notes.back(), "the weights are those of state_dict");
  EXPECT_NE(read_all(*averaged.tensors), read_all(*trained.tensors));
}

TEST(Imported, Dinov2sRegistersHaveNoPositions) {
  const Model model = open_fixture("dinov2.pth");
  EXPECT_EQ(model.description.variant, "DINOv2 with registers");
  EXPECT_EQ(model.description.config.classes, 0);
  EXPECT_EQ(model.description.config.registers, 4);
  EXPECT_GT(model.description.config.layer_scale, 0);
  const auto all = read_all(*model.tensors);
  EXPECT_FALSE(all.contains("head.weight"));
  const auto& positions = all.at("pos_embed");
  ASSERT_EQ(positions.size(), 14U * 16);
  for (size_t i = 0; i < positions.size(); ++i) {
    const bool of_register = i / 16 >= 1 && i / 16 <= 4;
    EXPECT_EQ(positions[i] == 0.0F, of_register) << i;
  }
}

/// Every tensor but the positions, which may have rows of their own, has the numbers of make_fixtures.py.
void expect_formulas(const std::map<std::string, std::vector<float>>& all) {
  for (const auto& [name, numbers] : all) {
    if (name == "pos_embed") continue;
    const bool scales = name.find("norm") != std::string::npos && name.ends_with("weight");
    EXPECT_EQ(numbers, formula_of(name, numbers.size(), scales ? 1 : 0)) << name;
  }
}

TEST(Imported, DeitThreesLayerScaleAndPositions) {
  const Model model = open_fixture("deit3.pth");
  EXPECT_EQ(model.description.variant, "DeiT III");
  EXPECT_EQ(model.description.pixels.mean, std::vector<float>({0.485F, 0.456F, 0.406F}));
  arch::VitConfig expected = small_config();
  expected.layer_scale = model.description.config.layer_scale;
  EXPECT_GT(expected.layer_scale, 0);
  EXPECT_EQ(model.description.config, expected);
  const auto all = read_all(*model.tensors);
  EXPECT_EQ(all.size(), arch::parameters(expected).size());
  expect_formulas(all);
  // Both of both blocks, and which is which.
  EXPECT_EQ(all.at("blocks.1.ls1.gamma"), formula_of("blocks.1.ls1.gamma", 16));
  EXPECT_NE(all.at("blocks.1.ls1.gamma"), all.at("blocks.1.ls2.gamma"));
  // A row of zeros for the class token, then the file's 9.
  const auto& positions = all.at("pos_embed");
  ASSERT_EQ(positions.size(), 10U * 16);
  EXPECT_EQ(std::vector(positions.begin(), positions.begin() + 16), std::vector<float>(16, 0.0F));
  EXPECT_EQ(std::vector(positions.begin() + 16, positions.end()), formula_of("pos_embed", 9UL * 16));
}

TEST(Imported, MaesEncoderWithAndWithoutItsDecoder) {
  for (const char* name : {"mae_encoder.pth", "mae_pretrained.pth"}) {
    const Model model = open_fixture(name);
    arch::VitConfig expected = small_config();
    expected.classes = 0;
    EXPECT_EQ(model.description.config, expected) << name;
    EXPECT_EQ(model.description.pixels.mean, std::vector<float>({0.485F, 0.456F, 0.406F}));
    const auto all = read_all(*model.tensors);
    EXPECT_FALSE(all.contains("head.weight"));
    expect_formulas(all);
    EXPECT_EQ(all.at("pos_embed"), formula_of("pos_embed", 10UL * 16)) << name;
  }
  const Model model = open_fixture("mae_pretrained.pth");
  EXPECT_EQ(model.description.variant, "MAE, pretrained");
  const auto& notes = model.description.notes;
  EXPECT_EQ(
      std::count(notes.begin(), notes.end(), "12 tensors of pretraining are left out (mask_token, ...)"), 1)
      << notes.at(0);
}

TEST(Imported, MaesFineTunedNetworkNormsTheAverage) {
  const Model model = open_fixture("mae_finetuned.pth");
  arch::VitConfig expected = small_config();
  expected.pool = arch::Pool::kAverage;
  EXPECT_EQ(model.description.config, expected);
  const auto all = read_all(*model.tensors);
  EXPECT_TRUE(all.contains("fc_norm.weight"));
  EXPECT_FALSE(all.contains("norm.weight"));
  expect_formulas(all);
  EXPECT_EQ(all.at("pos_embed"), formula_of("pos_embed", 10UL * 16));
}

TEST(ImportedAlike, BlocksInChunksAreTheBlocks) {
  const Model model = open_fixture("dinov2_chunked.pth");
  EXPECT_EQ(model.description.variant, "DINOv2 with registers");
  EXPECT_EQ(read_all(*model.tensors), read_all(*open_fixture("dinov2.pth").tensors));
}

class ImportErrors : public ::testing::Test {
 protected:
  std::string error(const Shapes& shapes, const std::string& dtype = "F32", int64_t heads = 2) {
    write_zeros(file, shapes, dtype);
    return error_text([&] { open_model(file, {.from = {}, .ema = true, .heads = heads}); });
  }
  const TemporaryFolder folder{"tessera-weights"};
  const fs::path file = folder.path() / "x.safetensors";
  const std::string where = " (" + file.string();
  Shapes shapes = timm_shapes(small_config());
};

TEST_F(ImportErrors, TensorsThatAreMissingWrongOrUnknown) {
  EXPECT_EQ(error(shapes), "no error");
  EXPECT_EQ(error(shapes, "BF16"), "no error");
  EXPECT_EQ(error(shapes, "I32"),
            concat("[weights.map] tensors in ", file.string(),
                   " are not floating-point: blocks.0.attn.proj.bias is I32; blocks.0.attn.proj.weight is "
                   "I32; blocks.0.attn.qkv.bias is I32; and 29 more"));
  Shapes changed = shapes;
  changed.erase("blocks.1.mlp.fc2.bias");
  EXPECT_EQ(error(changed), concat("[weights.map] ", file.string(),
                                   " has no blocks.1.mlp.fc2.bias [16]: expected all tensors of the model"));
  changed = shapes;
  changed["blocks.1.attn.qkv.weight"] = {32, 16};
  EXPECT_EQ(error(changed),
            concat("[weights.map] tensors in ", file.string(),
                   " have wrong shapes: blocks.1.attn.qkv.weight is [32, 16] and not [48, 16]"));
  changed = shapes;
  changed["norm_pre.weight"] = {16};
  EXPECT_EQ(error(changed), concat("[weights.map] ", file.string(),
                                   " has tensors that a ViT of Tessera does not have: norm_pre.weight [16]; "
                                   "this variant is not supported"));
  changed = shapes;
  changed["pos_embed"] = {1, 12, 16};
  EXPECT_EQ(error(changed), concat("[weights.open] ", file.string(),
                                   " has 12 rows of positions: expected a square and 1 more"));
  EXPECT_EQ(error(shapes, "F32", 0), concat("[weights.open] ", file.string(),
                                            " does not say the number of heads, and width 16 is not a "
                                            "multiple of 64; give it with --heads, or --set model.heads=N"));
  EXPECT_EQ(error(shapes, "F32", 3), concat("[arch.check] heads is 3, which does not divide width 16: "
                                            "expected a divisor of width; nearest: 2 and 4",
                                            where, ")"));
}

TEST_F(ImportErrors, VariantsWithoutAPlaceAreNamed) {
  Shapes changed = shapes;
  changed["blocks.0.mlp.w12.weight"] = {64, 16};
  EXPECT_EQ(error(changed), concat("[weights.open] ", file.string(),
                                   " has SwiGLU (mlp.w12), as DINOv2's giants have: expected an MLP of two "
                                   "layers; take DINOv2 of size S, B or L"));
  changed = shapes;
  changed.erase("cls_token");
  changed["pos_embed"] = {1, 9, 16};
  EXPECT_EQ(error(changed), "no error");
  EXPECT_TRUE(open_model(file, {.from = {}, .ema = true, .heads = 2}).description.config.norm_before_pool);
  EXPECT_EQ(error({{"layer.weight", {1}}, {"a.b", {1}}}),
            concat("[weights.open] ", file.string(),
                   " has a.b, layer.weight: expected a ViT with the tensor names of timm, torchvision, "
                   "Hugging Face or Google"));
}

/// A training checkpoint of timm names its architecture as config.json does.
TEST_F(ImportErrors, TheArchitectureOfATrainingCheckpointCounts) {
  const auto rope = kFixtures / "timm_rope.pth.tar";
  EXPECT_EQ(
      error_text([&] { open_model(rope); }),
      "[weights.open] " + rope.string() +
          ": arch is \"vit_small_patch16_rope_ape_224\", which has rotary position embeddings: expected an "
          "architecture that Tessera's ViT computes");
  const Model model =
      open_model(kFixtures / "timm_heads.pth.tar");  // width 16 alone gives no number of heads
  EXPECT_EQ(model.description.config.heads, 2);
}

TEST_F(ImportErrors, WrappersAndPretrainingAreTakenOff) {
  Shapes changed;
  for (const auto& [name, shape] : shapes) {
    if (!name.starts_with("head.")) changed["module.backbone." + name] = shape;
  }
  changed["module.backbone.mask_token"] = {1, 1, 16};
  changed["module.backbone.decoder_embed.weight"] = {8, 16};
  changed["module.head.mlp.0.weight"] = {8, 16};
  write_zeros(file, changed);
  const Model model = open_model(file, {.from = {}, .ema = true, .heads = 2});
  EXPECT_EQ(model.description.variant, "MAE, pretrained");
  EXPECT_EQ(model.description.config.classes, 0);
  EXPECT_EQ(model.description.notes.at(0),
            "3 tensors of pretraining are left out (decoder_embed.weight, ...)");
}

TEST_F(ImportErrors, OtherFiles) {
  const auto text_of = [&](const std::string& bytes) {
    std::ofstream(file, std::ios::binary) << bytes;
    return error_text([&] { open_model(file); });
  };
  EXPECT_EQ(
      text_of("GIF89a"),
      concat(
          "[weights.open] ", file.string(),
          " is not a file of weights: it begins with other bytes: expected safetensors, torch.save or .npz"));
  EXPECT_EQ(
      text_of(""),
      concat(
          "[weights.open] ", file.string(),
          " is not a file of weights: it begins with other bytes: expected safetensors, torch.save or .npz"));
  EXPECT_EQ(
      error_text([&] { open_model(folder.path() / "none.npz"); }),
      "[file.open] cannot open " + (folder.path() / "none.npz").string() + ": No such file or directory");
  fs::remove(file);
  EXPECT_EQ(error_text([&] { open_model(folder.path()); }),
            concat("[weights.open] ", folder.path().string(),
                   " has no file of weights: expected a checkpoint, or a folder with model.safetensors, its "
                   "index, or one file of weights"));
  const std::string sound = read_file(kFixtures / "timm.safetensors");
  EXPECT_TRUE(text_of(sound.substr(0, sound.size() - 4)).starts_with("[formats.safetensors]"));
  const std::string google = read_file(kFixtures / "google.npz");
  EXPECT_EQ(text_of(google.substr(0, google.size() - 4)),
            concat("[formats.zip] bad zip archive ", file.string(), ": it has no zip directory at its end"));
}

}  // namespace
}  // namespace tessera::weights
