// SPDX-License-Identifier: Apache-2.0
// Each operation against Pillow, torchvision and timm with the same parameters (make_augment_expected.py).
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/data/augment/operation.h"
#include "tessera/data/augment/pixel_ops.h"
#include "tests/data/augment_picture.h"

namespace tessera::data {
namespace {

constexpr Fill kFill = {124, 116, 104};

const std::map<std::string, Op> kOps = {
    {"autocontrast", Op::kAutoContrast},
    {"equalize", Op::kEqualize},
    {"invert", Op::kInvert},
    {"posterize", Op::kPosterize},
    {"solarize", Op::kSolarize},
    {"solarize_add", Op::kSolarizeAdd},
    {"brightness", Op::kBrightness},
    {"contrast", Op::kContrast},
    {"color", Op::kColor},
    {"sharpness", Op::kSharpness},
    {"hue", Op::kHue},
    {"blur", Op::kBlur},
    {"shear_x", Op::kShearX},
    {"shear_y", Op::kShearY},
    {"translate_x", Op::kTranslateX},
    {"translate_y", Op::kTranslateY},
    {"rotate", Op::kRotate},
    {"cutout", Op::kCutout},
};

std::vector<uint8_t> from_hex(const std::string& text) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

Image source_of(const nlohmann::json& c) {
  const int64_t width = c["width"], height = c["height"], channels = c["channels"];
  if (c.contains("source")) return {width, height, channels, from_hex(c["source"])};
  return augment_picture(width, height, channels);
}

Operation operation_of(const nlohmann::json& c) {
  Operation operation;
  operation.op = kOps.at(c["op"]);
  operation.amount = c["amount"];
  operation.filter = c["filter"] == "bicubic" ? Filter::kBicubic : Filter::kBilinear;
  operation.x = c.value("x", int64_t{0});
  operation.y = c.value("y", int64_t{0});
  return operation;
}

TEST(AugmentOps, EqualPillowTorchvisionAndTheDefinitionOfTensorFlow) {
  const auto expected = nlohmann::json::parse(
      read_file(std::string(TESSERA_SOURCE_DIR) + "/tests/data/augment_expected.json"))["operations"];
  std::map<std::string, int> seen;
  int large = 0;
  for (const auto& c : expected) {
    const bool tensorflow = c["dialect"] == "tensorflow";
    Style style{Dialect::kPillow, kFill};
    if (tensorflow) style = {Dialect::kTensorFlow, {128, 128, 128}};
    Image image = source_of(c);
    apply(operation_of(c), style, &image);
    if (c.contains("crc32")) {
      EXPECT_EQ(crc32_z(0, image.pixels.data(), image.pixels.size()), c["crc32"].get<uint64_t>())
          << c["op"] << " " << c["amount"] << " " << c["filter"] << " " << c["dialect"] << " " << c["width"]
          << " x " << c["height"];
      ++large;
      continue;
    }
    const std::vector<uint8_t> wanted = from_hex(c["pixels"]);
    ASSERT_EQ(image.pixels.size(), wanted.size());
    ++seen[c["op"]];
    if (image.pixels == wanted) continue;
    int64_t sum = 0, most = 0, different = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const int64_t error = std::abs(int64_t{image.pixels[i]} - int64_t{wanted[i]});
      sum += error;
      most = std::max(most, error);
      different += error > 0 ? 1 : 0;
    }
    ADD_FAILURE() << c["op"] << " " << c["amount"] << " " << c["filter"] << " " << c["dialect"] << " "
                  << c["width"] << " x " << c["height"] << " x " << c["channels"] << ": " << different
                  << " of " << wanted.size() << " levels differ, by " << most << " at most, in the mean by "
                  << static_cast<double>(sum) / static_cast<double>(wanted.size());
  }
  EXPECT_EQ(seen.size(), kOps.size());
  EXPECT_GT(large, 70) << "pictures of the size that training makes";
}

TEST(AugmentOps, PosterizeToNoBitsIsBlack) {
  Image image = augment_picture(7, 5, 3);
  posterize(&image, 0);
  EXPECT_EQ(image.pixels, std::vector<uint8_t>(105, 0));
}

TEST(AugmentOps, BigVisionsContrastBlendsWith196At224) {
  Image image{224, 224, 1, std::vector<uint8_t>(224 * 224, 100)};
  apply({Op::kContrast, 0.5}, {Dialect::kTensorFlow, {}}, &image);
  EXPECT_EQ(image.pixels[0], 148);  // (196 + 100) / 2; Pillow's leaves a plain image as it is
  Image plain{224, 224, 1, std::vector<uint8_t>(224 * 224, 100)};
  apply({Op::kContrast, 0.5}, {}, &plain);
  EXPECT_EQ(plain.pixels[0], 100);
}

TEST(AugmentOps, GrayImagesHaveNoColour) {
  const Image before = augment_picture(9, 8, 1);
  for (const Op op : {Op::kColor, Op::kHue}) {
    for (const Dialect dialect : {Dialect::kPillow, Dialect::kTensorFlow}) {
      Image image = before;
      apply({op, 0.3}, {dialect, {}}, &image);
      EXPECT_EQ(image.pixels, before.pixels);
    }
  }
}

TEST(AugmentOps, ACutoutBeyondTheEdges) {
  Image image{3, 2, 3, std::vector<uint8_t>(18, 7)};
  apply({Op::kCutout, 9, Filter::kBilinear, 0, 1}, {Dialect::kTensorFlow, {128, 128, 128}}, &image);
  EXPECT_EQ(image.pixels, std::vector<uint8_t>(18, 128));
  apply({Op::kCutout, 0, Filter::kBilinear, 1, 1}, {Dialect::kTensorFlow, {5, 5, 5}}, &image);
  EXPECT_EQ(image.pixels, std::vector<uint8_t>(18, 128));
}

}  // namespace
}  // namespace tessera::data
