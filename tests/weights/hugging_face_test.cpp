// SPDX-License-Identifier: Apache-2.0
// config.json, preprocessor_config.json and the index of sharded files: what they say, and what is wrong with
// them.
#include <gtest/gtest.h>

#include <fstream>

#include "tessera/weights/hugging_face_config.h"
#include "tests/error_text.h"
#include "tests/weights/foreign.h"

namespace tessera::weights {
namespace {
using namespace testing;

std::string config_error(const std::string& json) {
  Description description;
  return error_text([&] { read_hugging_face_config(json, "x", description); });
}

/// Of a model of 224 px.
std::string preprocessor_error(const std::string& json) {
  Description description;
  return error_text([&] { read_preprocessor_config(json, "x", description); });
}

data::TransformOptions preprocessor(const std::string& json) {
  Description description;
  read_preprocessor_config(json, "x", description);
  EXPECT_TRUE(description.notes.empty());
  return description.pixels;
}

TEST(HuggingFaceConfig, WhatIsWrittenIsReadBack) {
  Description read;
  arch::VitConfig config = small_config();
  config.norm_epsilon = 1e-5;
  read_hugging_face_config(hugging_face_config(config, {"a", "b \"quoted\""}), "x", read);
  read.config.classes = config.classes;  // the file of tensors says how many
  EXPECT_EQ(read.config, config);
  EXPECT_EQ(read.classes, std::vector<std::string>({"a", "b \"quoted\"", "LABEL_2", "LABEL_3", "LABEL_4"}));
  using data::EvalCrop;
  for (const auto crop : {EvalCrop::kSquash, EvalCrop::kCenter, EvalCrop::kSquashCenter}) {
    for (const double ratio : {0.875, 0.9}) {  // 224 / 0.9 = 248.9: both round down
      data::TransformOptions pixels;
      set_pixels(pixels, true);
      pixels.bicubic = true;
      pixels.eval_crop = crop;
      pixels.eval_crop_ratio = ratio;
      const data::TransformOptions again = preprocessor(preprocessor_config(pixels, 224));
      EXPECT_EQ(again.mean, pixels.mean);
      EXPECT_EQ(again.std, pixels.std);
      EXPECT_EQ(again.bicubic, true);
      EXPECT_EQ(again.eval_crop, crop);
      if (crop != EvalCrop::kSquash) {
        EXPECT_EQ(static_cast<int64_t>(224 / again.eval_crop_ratio + 1e-9), ratio == 0.9 ? 248 : 256);
      }
    }
  }
}

TEST(HuggingFaceConfig, WhatIsWrongIsOneLine) {
  const std::string hint = "; Tessera's ViT would compute something else";
  EXPECT_EQ(config_error("{"), "[weights.config] x is no JSON: expected an object {\"name\": value, ...}");
  EXPECT_EQ(config_error("[]"),
            "[weights.config] x holds no JSON object: expected an object {\"name\": value, ...}");
  EXPECT_EQ(
      config_error(R"({"model_type": "dinov2"})"),
      "[weights.config] x: model_type is \"dinov2\": expected \"vit\" or \"deit\"; take the .pth of DINOv2");
  EXPECT_EQ(
      config_error(R"({"model_type": "vit_mae"})"),
      "[weights.config] x: model_type is \"vit_mae\": expected \"vit\" or \"deit\"; Tessera has no such "
      "model of transformers");
  EXPECT_EQ(config_error(R"({"hidden_act": "quick_gelu"})"),
            "[weights.config] x: hidden_act is \"quick_gelu\": expected \"gelu\" or \"gelu_python\"" + hint);
  EXPECT_EQ(config_error(R"({"qkv_bias": false})"),
            "[weights.config] x: qkv_bias is false: expected true" + hint);
  EXPECT_EQ(config_error(R"({"problem_type": "multi_label_classification"})"),
            "[weights.config] x: problem_type is \"multi_label_classification\": expected "
            "\"single_label_classification\"" +
                hint);
  EXPECT_EQ(config_error(R"({"hidden_size": 1.5})"),
            "[weights.config] x: hidden_size is 1.5: expected a whole number above 0");
  EXPECT_EQ(config_error(R"({"hidden_size": "large"})"),
            "[weights.config] x: hidden_size is \"large\": expected a number");
  EXPECT_EQ(config_error(R"({"image_size": [224, 192]})"),
            "[weights.config] x: image_size is [224,192]: expected the side of a square in pixels");
  EXPECT_EQ(config_error(R"({"id2label": {"1": "a"}})"),
            "[weights.config] x: id2label[\"1\"] is \"a\": expected labels 0 to 0, each with a text");
}

TEST(PreprocessorConfig, EveryFieldThatMakesPixelsIsHonoured) {
  using data::EvalCrop;
  // Defaults of the processors, as transformers' classes have them.
  EXPECT_EQ(preprocessor("{}").eval_crop, EvalCrop::kSquash);
  const auto deit = preprocessor(R"({"image_processor_type": "DeiTImageProcessorFast"})");
  EXPECT_EQ(deit.eval_crop, EvalCrop::kSquashCenter);
  EXPECT_EQ(deit.eval_crop_ratio, 0.875);
  EXPECT_TRUE(deit.bicubic);
  const auto bit = preprocessor(R"({"image_processor_type": "BitImageProcessor", "size": 256})");
  EXPECT_EQ(bit.eval_crop, EvalCrop::kCenter);  // a number is that of the shorter side there
  EXPECT_EQ(bit.mean[0], 0.48145466F);
  // (pixel * factor - mean) / std of pixels 0 to 255.
  const auto scaled = preprocessor(R"({"rescale_factor": 0.00784313725490196})");  // 2/255
  EXPECT_NEAR(scaled.mean[0], 0.25, 1e-6);
  EXPECT_NEAR(scaled.std[0], 0.25, 1e-6);
  const auto bytes =
      preprocessor(R"({"do_rescale": false, "image_mean": [127.5, 127.5, 127.5], "image_std": 127.5})");
  EXPECT_NEAR(bytes.mean[2], 0.5, 1e-6);
  EXPECT_NEAR(bytes.std[0], 0.5, 1e-6);
}

TEST(PreprocessorConfig, WhatCannotBeHonouredIsRefused) {
  EXPECT_EQ(preprocessor_error(R"({"resample": 0})"),
            "[weights.config] x: resample is 0 (nearest): expected 2 (bilinear) or 3 (bicubic)");
  EXPECT_EQ(
      preprocessor_error(R"({"size": {"height": 2, "width": 3}})"),
      "[weights.config] x: size is {\"height\":2,\"width\":3}: expected {\"height\": N, \"width\": N} or "
      "{\"shortest_edge\": N}");
  EXPECT_EQ(preprocessor_error(R"({"size": 256})"),
            "[weights.config] x: size is 256: expected image_size of the model, 224");
  EXPECT_EQ(
      preprocessor_error(R"({"size": {"shortest_edge": 224}})"),
      "[weights.config] x: size is that of the shorter side, 224: expected {\"height\": N, \"width\": N}; "
      "without do_center_crop images would not be square");
  EXPECT_EQ(preprocessor_error(R"({"image_mean": [0.5, "a"]})"),
            "[weights.config] x: image_mean is [0.5,\"a\"]: expected a list of one number a channel");
  EXPECT_EQ(preprocessor_error(R"({"do_center_crop": true, "size": 224, "crop_size": 256})"),
            "[weights.config] x: crop_size is 256: expected image_size of the model, 224");
  EXPECT_EQ(
      preprocessor_error(R"({"image_processor_type": "ConvNextImageProcessor"})"),
      "[weights.config] x: image_processor_type is \"ConvNextImageProcessor\": expected a ViT, DeiT, Bit or "
      "CLIP image processor; other processors make other pixels; remove the file to state them by --set "
      "data.*");
}

TEST(TimmConfig, SaysWhatImagesAreExpected) {
  Description found;
  EXPECT_FALSE(read_timm_config(R"({"model_type": "vit"})", "x", found));
  const auto said = read_timm_config(
      R"({"architecture": "vit_base_patch16_gap_224", "global_pool": "avg", "num_classes": 2, "brand_new": 1,
          "pretrained_cfg": {"crop_pct": 0.9, "interpolation": "bicubic", "mean": [0.5, 0.5, 0.5],
          "std": [0.25, 0.25, 0.25], "label_names": ["a", "b"], "input_size": [3, 224, 224]}})",
      "x", found);
  ASSERT_TRUE(said);
  EXPECT_EQ(said->heads, 16);  // of the architecture; 768 wide ones have 12 otherwise
  EXPECT_EQ(said->global_pool, "avg");
  EXPECT_EQ(said->input_side, 224);
  EXPECT_EQ(said->classes, 2);
  EXPECT_EQ(found.classes, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(found.notes,
            std::vector<std::string>{"x: fields that Tessera does not know and ignores: brand_new"});
  EXPECT_EQ(found.pixels.std, std::vector<float>(3, 0.25F));
  EXPECT_EQ(found.pixels.eval_crop_ratio, 0.9);
  EXPECT_EQ(found.pixels.eval_crop, data::EvalCrop::kCenter);
  EXPECT_TRUE(found.pixels.bicubic);
}

/// Older files hold the fields of pretrained_cfg and the architecture side by side: each field that is
/// honoured there is known, and one that neither place has is named once.
TEST(TimmConfig, AFlatFileHasTheFieldsOfBothPlaces) {
  Description found;
  const auto said = read_timm_config(
      R"({"architecture": "vit_tiny_patch16_224", "global_pool": "avg", "model_args": {}, "crop_pct": 0.9,
          "label_names": ["a"], "model_type": "timm_wrapper", "brand_new": 1})",
      "x", found);
  ASSERT_TRUE(said);
  EXPECT_EQ(said->global_pool, "avg");
  EXPECT_EQ(found.notes,
            std::vector<std::string>{"x: fields that Tessera does not know and ignores: brand_new"});
  EXPECT_EQ(
      error_text([&] { read_timm_config(R"({"architecture": "x", "do_pooling": false})", "x", found); }),
      "[weights.config] x: do_pooling is false: expected true; Tessera's ViT would compute something else");
}

TEST(TimmConfig, AnUnknownArchitectureIsNamed) {
  Description found;
  ASSERT_TRUE(read_timm_config(R"({"architecture": "vit_new", "pretrained_cfg": {}})", "x", found));
  EXPECT_EQ(found.notes,
            std::vector<std::string>{
                "x: Tessera does not know the architecture \"vit_new\", and computes a ViT with exact GELU, "
                "norms before attention and MLP, and learned positions only"});
}

TEST(TimmConfig, WhatCannotBeHonouredIsRefused) {
  const auto error = [](const std::string& json) {
    Description found;
    return error_text([&] { read_timm_config(json, "x", found); });
  };
  EXPECT_EQ(error(R"({"pretrained_cfg": {"crop_pct": 2}})"),
            "[weights.config] x: pretrained_cfg: crop_pct is 2: expected above 0 and at most 1");
  EXPECT_EQ(error(R"({"pretrained_cfg": {"crop_mode": "border"}})"),
            "[weights.config] x: pretrained_cfg: crop_mode is \"border\": expected \"center\" or \"squash\"; "
            "Tessera does not pad images");
  EXPECT_EQ(
      error(R"({"architecture": "vit_base_patch16_rpn_224", "crop_pct": 0.9})"),
      "[weights.config] x: architecture is \"vit_base_patch16_rpn_224\", which has norms behind attention "
      "and MLP (ResPostBlock): expected an architecture that Tessera's ViT computes");
  EXPECT_EQ(
      error(R"({"architecture": "vit_small_patch16_rope_ape_224", "pretrained_cfg": {}})"),
      "[weights.config] x: architecture is \"vit_small_patch16_rope_ape_224\", which has rotary position "
      "embeddings: expected an architecture that Tessera's ViT computes");
  EXPECT_EQ(
      error(R"({"pretrained_cfg": {}, "model_args": {"act_layer": "gelu_tanh"}})"),
      "[weights.config] x: model_args: act_layer is \"gelu_tanh\": expected \"gelu\"; Tessera's ViT would "
      "compute something else");
}

/// The error of a folder with the small model's tensors under timm's names and this config.json.
std::string timm_folder_error(const std::string& json, const arch::VitConfig& config = small_config()) {
  const TemporaryFolder folder("tessera-weights");
  write_zeros(folder.path() / "model.safetensors", timm_shapes(config));
  std::ofstream(folder.path() / "config.json") << json;
  std::string text = error_text([&] { open_model(folder.path(), {.from = {}, .ema = true, .heads = 2}); });
  const std::string file = (folder.path() / "config.json").string();
  if (const size_t at = text.find(file); at != std::string::npos) text.replace(at, file.size(), "x");
  return text;
}

/// Whatever the depth: a published size is not looked for where the architecture says the heads.
TEST(TimmConfig, TheArchitectureGivesTheHeads) {
  const TemporaryFolder folder("tessera-weights");
  arch::VitConfig config = small_config();
  config.width = 1280;  // 20 heads of 64, as nothing but the architecture says otherwise
  config.mlp_width = 8;
  config.heads = 16;
  write_zeros(folder.path() / "model.safetensors", timm_shapes(config));
  const auto heads = [&](const std::string& json) {
    std::ofstream(folder.path() / "config.json") << json;
    const Model model = open_model(folder.path());
    const bool guessed = std::ranges::any_of(model.description.notes, [](const std::string& note) {
      return note.find("heads") != std::string::npos;
    });
    EXPECT_EQ(guessed, model.description.config.heads == 20) << json;
    return model.description.config.heads;
  };
  EXPECT_EQ(heads(R"({"architecture": "vit_huge_patch14_224", "pretrained_cfg": {}})"), 16);
  EXPECT_EQ(heads(R"({"architecture": "deit3_huge_patch14_224", "crop_pct": 0.9})"), 16);
  EXPECT_EQ(
      heads(
          R"({"architecture": "vit_huge_patch14_224", "pretrained_cfg": {}, "model_args": {"num_heads": 10}})"),
      10);
  EXPECT_EQ(heads(R"({"architecture": "vit_new", "pretrained_cfg": {}})"), 20);
}

TEST(TimmConfig, ContradictionsWithTheTensorsAreRefused) {
  const std::string hint = "; config.json and weights contradict each other, or Tessera has no such model";
  EXPECT_EQ(timm_folder_error(R"({"pretrained_cfg": {}, "global_pool": "avgmax"})"),
            "[weights.config] x: global_pool is \"avgmax\": expected \"token\", \"avg\" or \"map\"" + hint);
  EXPECT_EQ(
      timm_folder_error(R"({"pretrained_cfg": {}, "model_args": {"fc_norm": true}})"),
      "[weights.config] x: fc_norm is true: expected false, as there is no tensor fc_norm.weight" + hint);
  EXPECT_EQ(
      timm_folder_error(R"({"pretrained_cfg": {"input_size": [3, 16, 16]}})"),
      "[weights.config] x: input_size is 16: expected 12, the pixels that the weights have positions for; "
      "state in config.json what the weights were trained with");
  EXPECT_EQ(timm_folder_error(R"({"pretrained_cfg": {}, "label_names": ["a"]})"),
            "[weights.config] x: label_names names 1 classes: expected 5, the outputs of the head");
}

TEST(HuggingFaceFolder, ModelTypeIsReadBeforeTensors) {
  const TemporaryFolder folder("tessera-weights");
  std::ofstream(folder.path() / "config.json") << R"({"model_type": "swin"})";
  const std::string expected =
      "[weights.config] " + (folder.path() / "config.json").string() +
      ": model_type is \"swin\": expected \"vit\" or \"deit\"; Tessera has no such model "
      "of transformers";
  for (const char* name : {"swin.embeddings.patch_embeddings.projection.weight", "swin.layers.0.weight"}) {
    write_zeros(folder.path() / "model.safetensors", {{name, {16, 3, 4, 4}}});
    EXPECT_EQ(error_text([&] { open_model(folder.path()); }), expected);
  }
}

/// Writes the file's tensors again, with `before` in front of every name.
void write_wrapped(const std::filesystem::path& from, const std::string& before,
                   const std::filesystem::path& to) {
  const Opened opened = open_file(from);
  std::vector<formats::SafetensorsEntry> entries;
  for (const auto& tensor : opened.source->tensors())
    entries.push_back({before + tensor.name, tensor.dtype, tensor.shape});
  formats::SafetensorsWriter writer(to, entries, {});
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::vector<float> values = read(*opened.source, i);
    writer.write(std::as_bytes(std::span(values)));
  }
  writer.finish();
}

TEST(Wrapped, AnyPrefixOfAllNamesIsUnderstood) {
  const TemporaryFolder folder("tessera-weights");
  for (const char* name : {"timm.safetensors", "torchvision.pth", "hf/model.safetensors"}) {
    for (const char* before : {"module.", "net.0.", "lightning_module.backbone."}) {
      write_wrapped(kFixtures / name, before, folder.path() / "wrapped.safetensors");
      const Model bare = open_fixture(name);
      const Model found =
          open_model(folder.path() / "wrapped.safetensors", {.from = {}, .ema = true, .heads = 2});
      EXPECT_EQ(read_all(*found.tensors), read_all(*bare.tensors)) << before << name;
    }
  }
}

TEST(HuggingFaceIndex, NamesFilesBesideIt) {
  const auto error = [](const std::string& json) { return error_text([&] { parse_index(json, "x"); }); };
  EXPECT_EQ(parse_index(R"({"weight_map": {"a": "b.safetensors"}})", "x").at("a"), "b.safetensors");
  EXPECT_EQ(error("{"),
            "[weights.index] x has no valid JSON: expected {\"weight_map\": {tensor: file, ...}}");
  EXPECT_EQ(error("{}"),
            "[weights.index] x has no object weight_map: expected {\"weight_map\": {tensor: file, ...}}");
  EXPECT_EQ(error(R"({"weight_map": {"a": 1}})"),
            "[weights.index] x has no file for a: expected {\"weight_map\": {tensor: file, ...}}");
  EXPECT_EQ(error(R"({"weight_map": {"a": "../b"}})"),
            "[weights.index] x has the file name \"../b\", which is not beside it: expected {\"weight_map\": "
            "{tensor: file, ...}}");
}

TEST(HuggingFaceIndex, TensorsAreWhereItSays) {
  const TemporaryFolder folder("tessera-weights");
  write_zeros(folder.path() / "a.safetensors", {{"x", {2}}});
  const auto index = folder.path() / "model.safetensors.index.json";
  std::ofstream(index) << R"({"weight_map": {"x": "a.safetensors", "y": "a.safetensors"}})";
  EXPECT_EQ(error_text([&] { open_model(folder.path()); }),
            concat("[weights.index] a.safetensors has no tensor y, which ", index.string(),
                   " names; the files may be parts of different models"));
}

}  // namespace
}  // namespace tessera::weights
