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

std::string preprocessor_error(const std::string& json) {
  data::TransformOptions pixels;
  return error_text([&] { read_preprocessor_config(json, "x", pixels); });
}

TEST(HuggingFaceConfig, WhatIsWrittenIsReadBack) {
  Description read;
  arch::VitConfig config = small_config();
  config.norm_epsilon = 1e-5;
  read_hugging_face_config(hugging_face_config(config, {"a", "b \"quoted\""}), "x", read);
  read.config.classes = config.classes;  // the file of tensors says how many
  EXPECT_EQ(read.config, config);
  EXPECT_EQ(read.classes, std::vector<std::string>({"a", "b \"quoted\"", "LABEL_2", "LABEL_3", "LABEL_4"}));
  for (const auto crop : {data::EvalCrop::kSquash, data::EvalCrop::kCenter}) {
    data::TransformOptions pixels, again;
    set_pixels(pixels, true);
    pixels.bicubic = true;
    pixels.eval_crop = crop;
    pixels.eval_crop_ratio = crop == data::EvalCrop::kCenter ? 0.875 : again.eval_crop_ratio;
    read_preprocessor_config(preprocessor_config(pixels, 224), "x", again);
    EXPECT_EQ(again.mean, pixels.mean);
    EXPECT_EQ(again.std, pixels.std);
    EXPECT_EQ(again.bicubic, true);
    EXPECT_EQ(again.eval_crop, crop);
    EXPECT_EQ(again.eval_crop_ratio, pixels.eval_crop_ratio);
  }
}

TEST(HuggingFaceConfig, WhatIsWrongIsOneLine) {
  EXPECT_EQ(config_error("{"), "[weights.config] a JSON object: found no JSON (x)");
  EXPECT_EQ(config_error("[]"), "[weights.config] a JSON object: found another value (x)");
  EXPECT_EQ(config_error(R"({"model_type": "deit"})"),
            "[weights.config] model_type \"vit\": found \"deit\", whose distillation token Tessera's ViT has "
            "not (x)");
  EXPECT_EQ(config_error(R"({"model_type": "dinov2"})"),
            "[weights.config] model_type \"vit\": found \"dinov2\": take the .pth of DINOv2 (x)");
  EXPECT_EQ(config_error(R"({"hidden_act": "quick_gelu"})"),
            "[weights.config] hidden_act \"gelu\": found \"quick_gelu\" (x)");
  EXPECT_EQ(config_error(R"({"qkv_bias": false})"), "[weights.config] qkv_bias true: found false (x)");
  EXPECT_EQ(config_error(R"({"hidden_size": 1.5})"),
            "[weights.config] hidden_size as a whole number above 0: found 1.5 (x)");
  EXPECT_EQ(config_error(R"({"hidden_size": "large"})"),
            "[weights.config] hidden_size as a number: found string (x)");
  EXPECT_EQ(config_error(R"({"id2label": {"1": "a"}})"),
            "[weights.config] id2label from 0 on, each with a text: found \"1\" (x)");
  EXPECT_EQ(preprocessor_error(R"({"resample": 0})"),
            "[weights.config] resample 2 (bilinear) or 3 (bicubic): found 0 (nearest) (x)");
  EXPECT_EQ(preprocessor_error(R"({"size": {"height": 2, "width": 3}})"),
            "[weights.config] size as the side of a square: found {\"height\":2,\"width\":3} (x)");
  EXPECT_EQ(preprocessor_error(R"({"image_mean": [0.5, "a"]})"),
            "[weights.config] image_mean as a list of one number a channel: found array (x)");
  EXPECT_EQ(preprocessor_error(R"({"do_rescale": false})"),
            "[weights.config] do_rescale true: found false (x)");
  EXPECT_EQ(preprocessor_error(R"({"do_center_crop": true, "size": 224, "crop_size": 256})"),
            "[weights.config] crop_size of at most size: found another (x)");
}

TEST(TimmConfig, SaysWhatImagesAreExpected) {
  data::TransformOptions pixels;
  EXPECT_FALSE(read_timm_config(R"({"model_type": "vit"})", "x", pixels));
  EXPECT_TRUE(read_timm_config(R"({"architecture": "vit_base_patch16_224", "pretrained_cfg": {"crop_pct": 0.9,
      "interpolation": "bicubic", "mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}})",
                               "x", pixels));
  EXPECT_EQ(pixels.std, std::vector<float>(3, 0.25F));
  EXPECT_EQ(pixels.eval_crop_ratio, 0.9);
  EXPECT_TRUE(pixels.bicubic);
  EXPECT_EQ(error_text([&] { read_timm_config(R"({"pretrained_cfg": {"crop_pct": 2}})", "x", pixels); }),
            "[weights.config] crop_pct above 0 and at most 1: found 2 (x)");
}

TEST(HuggingFaceIndex, NamesFilesBesideIt) {
  const auto error = [](const std::string& json) { return error_text([&] { parse_index(json, "x"); }); };
  const std::string expected = "[weights.index] {\"weight_map\": {tensor: file, ...}}: found ";
  EXPECT_EQ(parse_index(R"({"weight_map": {"a": "b.safetensors"}})", "x").at("a"), "b.safetensors");
  EXPECT_EQ(error("{"), expected + "no JSON (x)");
  EXPECT_EQ(error("{}"), expected + "no object weight_map (x)");
  EXPECT_EQ(error(R"({"weight_map": {"a": 1}})"), expected + "no file for a (x)");
  EXPECT_EQ(error(R"({"weight_map": {"a": "../b"}})"),
            expected + "\"../b\", which is no name of a file beside it (x)");
}

TEST(HuggingFaceIndex, TensorsAreWhereItSays) {
  const TemporaryFolder folder("tessera-weights");
  write_zeros(folder.path() / "a.safetensors", {{"x", {2}}});
  const auto index = folder.path() / "model.safetensors.index.json";
  std::ofstream(index) << R"({"weight_map": {"x": "a.safetensors", "y": "a.safetensors"}})";
  EXPECT_EQ(error_text([&] { open_model(folder.path()); }),
            "[weights.index] the tensor y in a.safetensors: it is not there (" + index.string() +
                "; parts of different models?)");
}

}  // namespace
}  // namespace tessera::weights
