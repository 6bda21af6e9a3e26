// SPDX-License-Identifier: Apache-2.0
// The published tables: AutoAugment's policies for ImageNet and RandAugment's sets, under timm's names.
#include <iterator>

#include "tessera/data/augment/timm_ops.h"

namespace tessera::data::timm {
namespace {

/// Two operations in sequence: name, probability, magnitude.
struct Row {
  std::string_view first;
  double first_probability, first_magnitude;
  std::string_view second;
  double second_probability, second_magnitude;
};

// Cubuk et al., "AutoAugment", arXiv 1805.09501, table 9.
constexpr Row kOriginal[] = {
    {"PosterizeOriginal", 0.4, 8, "Rotate", 0.6, 9},
    {"Solarize", 0.6, 5, "AutoContrast", 0.6, 5},
    {"Equalize", 0.8, 8, "Equalize", 0.6, 3},
    {"PosterizeOriginal", 0.6, 7, "PosterizeOriginal", 0.6, 6},
    {"Equalize", 0.4, 7, "Solarize", 0.2, 4},
    {"Equalize", 0.4, 4, "Rotate", 0.8, 8},
    {"Solarize", 0.6, 3, "Equalize", 0.6, 7},
    {"PosterizeOriginal", 0.8, 5, "Equalize", 1.0, 2},
    {"Rotate", 0.2, 3, "Solarize", 0.6, 8},
    {"Equalize", 0.6, 8, "PosterizeOriginal", 0.4, 6},
    {"Rotate", 0.8, 8, "Color", 0.4, 0},
    {"Rotate", 0.4, 9, "Equalize", 0.6, 2},
    {"Equalize", 0.0, 7, "Equalize", 0.8, 8},
    {"Invert", 0.6, 4, "Equalize", 1.0, 8},
    {"Color", 0.6, 4, "Contrast", 1.0, 8},
    {"Rotate", 0.8, 8, "Color", 1.0, 2},
    {"Color", 0.8, 8, "Solarize", 0.8, 7},
    {"Sharpness", 0.4, 7, "Invert", 0.6, 8},
    {"ShearX", 0.6, 5, "Equalize", 1.0, 9},
    {"Color", 0.4, 0, "Equalize", 0.6, 3},
    {"Equalize", 0.4, 7, "Solarize", 0.2, 4},
    {"Solarize", 0.6, 5, "AutoContrast", 0.6, 5},
    {"Invert", 0.6, 4, "Equalize", 1.0, 8},
    {"Color", 0.6, 4, "Contrast", 1.0, 8},
    {"Equalize", 0.8, 8, "Equalize", 0.6, 3},
};

// The EfficientNet code for TPUs (tensorflow/tpu), policy v0.
constexpr Row kV0[] = {
    {"Equalize", 0.8, 1, "ShearY", 0.8, 4},        {"Color", 0.4, 9, "Equalize", 0.6, 3},
    {"Color", 0.4, 1, "Rotate", 0.6, 8},           {"Solarize", 0.8, 3, "Equalize", 0.4, 7},
    {"Solarize", 0.4, 2, "Solarize", 0.6, 2},      {"Color", 0.2, 0, "Equalize", 0.8, 8},
    {"Equalize", 0.4, 8, "SolarizeAdd", 0.8, 3},   {"ShearX", 0.2, 9, "Rotate", 0.6, 8},
    {"Color", 0.6, 1, "Equalize", 1.0, 2},         {"Invert", 0.4, 9, "Rotate", 0.6, 0},
    {"Equalize", 1.0, 9, "ShearY", 0.6, 3},        {"Color", 0.4, 7, "Equalize", 0.6, 0},
    {"Posterize", 0.4, 6, "AutoContrast", 0.4, 7}, {"Solarize", 0.6, 8, "Color", 0.6, 9},
    {"Solarize", 0.2, 4, "Rotate", 0.8, 9},        {"Rotate", 1.0, 7, "TranslateYRel", 0.8, 9},
    {"ShearX", 0.0, 0, "Solarize", 0.8, 4},        {"ShearY", 0.8, 0, "Color", 0.6, 4},
    {"Color", 1.0, 0, "Rotate", 0.6, 2},           {"Equalize", 0.8, 4, "Equalize", 0.0, 8},
    {"Equalize", 1.0, 4, "AutoContrast", 0.6, 2},  {"ShearY", 0.4, 7, "SolarizeAdd", 0.6, 7},
    {"Posterize", 0.8, 2, "Solarize", 0.6, 10},    {"Solarize", 0.6, 8, "Equalize", 0.6, 1},
    {"Color", 0.8, 6, "Rotate", 0.4, 5},
};

/// `r` policies posterize as the researchers' code does: fewer bits at a larger magnitude.
std::string_view name_in(std::string_view name, bool research) {
  return research && name.starts_with("Posterize") ? "PosterizeIncreasing" : name;
}

template <size_t kRows>
std::vector<std::vector<Step>> policy(const Row (&rows)[kRows], bool research) {
  std::vector<std::vector<Step>> steps;
  for (const Row& row : rows) {
    steps.push_back(
        {{named_op(name_in(row.first, research)), row.first_probability, row.first_magnitude},
         {named_op(name_in(row.second, research)), row.second_probability, row.second_magnitude}});
  }
  return steps;
}

}  // namespace

std::vector<std::vector<Step>> auto_augment_policy(std::string_view name) {
  if (name == "original" || name == "originalr") return policy(kOriginal, name == "originalr");
  if (name == "v0" || name == "v0r") return policy(kV0, name == "v0r");
  if (name != "3a") return {};
  // Touvron et al., "DeiT III", arXiv 2204.07118: solarize at 128, grayscale, blur of 0.1 to 2 pixels.
  return {{{named_op("Solarize"), 1, 5}},
          {{named_op("Desaturate"), 1, 10}},
          {{named_op("GaussianBlurRand"), 1, 10}}};
}

std::vector<WeightedOp> rand_augment_set(std::string_view name, bool increasing) {
  if (name.empty()) {
    if (increasing) {
      return {{"AutoContrast", 0},
              {"Equalize", 0},
              {"Invert", 0},
              {"Rotate", 0},
              {"PosterizeIncreasing", 0},
              {"SolarizeIncreasing", 0},
              {"SolarizeAdd", 0},
              {"ColorIncreasing", 0},
              {"ContrastIncreasing", 0},
              {"BrightnessIncreasing", 0},
              {"SharpnessIncreasing", 0},
              {"ShearX", 0},
              {"ShearY", 0},
              {"TranslateXRel", 0},
              {"TranslateYRel", 0}};
    }
    return {{"AutoContrast", 0}, {"Equalize", 0},      {"Invert", 0},       {"Rotate", 0},
            {"Posterize", 0},    {"Solarize", 0},      {"SolarizeAdd", 0},  {"Color", 0},
            {"Contrast", 0},     {"Brightness", 0},    {"Sharpness", 0},    {"ShearX", 0},
            {"ShearY", 0},       {"TranslateXRel", 0}, {"TranslateYRel", 0}};
  }
  if (name == "3a") return {{"SolarizeIncreasing", 0}, {"Desaturate", 0}, {"GaussianBlur", 0}};
  if (name == "3aw") {
    return {{"SolarizeIncreasing", 6},
            {"Desaturate", 6},
            {"GaussianBlur", 6},
            {"Rotate", 3},
            {"ShearX", 2},
            {"ShearY", 2},
            {"PosterizeIncreasing", 1},
            {"AutoContrast", 1},
            {"ColorIncreasing", 1},
            {"SharpnessIncreasing", 1},
            {"ContrastIncreasing", 1},
            {"BrightnessIncreasing", 1},
            {"Equalize", 1},
            {"Invert", 1}};
  }
  if (name == "weights") {
    return {{"Rotate", 3},
            {"ShearX", 2},
            {"ShearY", 2},
            {"TranslateXRel", 1},
            {"TranslateYRel", 1},
            {"ColorIncreasing", 0.25},
            {"SharpnessIncreasing", 0.25},
            {"AutoContrast", 0.25},
            {"SolarizeIncreasing", 0.05},
            {"SolarizeAdd", 0.05},
            {"ContrastIncreasing", 0.05},
            {"BrightnessIncreasing", 0.05},
            {"Equalize", 0.05},
            {"PosterizeIncreasing", 0.05},
            {"Invert", 0.05}};
  }
  return {};
}

}  // namespace tessera::data::timm
