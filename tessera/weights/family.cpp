// SPDX-License-Identifier: Apache-2.0
#include "tessera/weights/family.h"

#include <array>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::weights {
namespace {

constexpr std::array<std::pair<Family, const char*>, 5> kNames = {{{Family::kTimm, "timm"},
                                                                   {Family::kTorchvision, "torchvision"},
                                                                   {Family::kHuggingFace, "hf"},
                                                                   {Family::kGoogle, "npz"},
                                                                   {Family::kBigVision, "big_vision"}}};

}  // namespace

std::string to_string(Family family) {
  for (const auto& [each, name] : kNames) {
    if (each == family) return name;
  }
  TESSERA_CHECK(false, static_cast<int>(family));
  return {};
}

Family family_of(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& [family, known] : kNames) {
    if (name == known) return family;
    names.emplace_back(known);
  }
  const std::string near = nearest(name, names);
  user_error({.where = "weights.family",
              .problem = concat("unknown family of weights \"", escape(name), '"'),
              .expected = concat("one of ", join(names, ", ")),
              .hint = near.empty() ? "" : concat("did you mean \"", near, "\"?")});
}

void set_pixels(data::TransformOptions& pixels, bool imagenet) {
  const data::TransformOptions usual;
  pixels.mean = imagenet ? usual.mean : std::vector<float>{0.5F, 0.5F, 0.5F};
  pixels.std = imagenet ? usual.std : std::vector<float>{0.5F, 0.5F, 0.5F};
  pixels.eval_crop = imagenet ? data::EvalCrop::kCenter : data::EvalCrop::kSquash;
  pixels.bicubic = false;
}

}  // namespace tessera::weights
