// SPDX-License-Identifier: Apache-2.0
// Settings of a training loader that between them leave everything to be done that can be left to a device.
#pragma once

#include <string>
#include <vector>

#include "tessera/data/loader.h"

namespace tessera::data {

struct PictureCase {
  std::string name;
  TransformOptions transform;
  LoaderOptions loader;  // the first of `world` ranks; others take its options with their own rank
};

inline std::vector<PictureCase> uint8_image_cases() {
  TransformOptions transform;
  transform.image_size = 13;
  transform.augment.policy = "rand-m9-mstd0.5-inc1";
  LoaderOptions loader;
  loader.seed = 3;
  loader.batch = 24;
  loader.workers = 2;
  std::vector<PictureCase> cases;
  const auto add = [&](std::string name, const auto& change) {
    PictureCase one{std::move(name), transform, loader};
    change(one);
    cases.push_back(one);
  };
  add("plain", [](auto&) {});
  add("gray", [](auto& c) {
    c.transform.channels = 1;
    c.transform.mean = {0.3F};
    c.transform.std = {0.2F};
    c.transform.augment.policy = "";
  });
  for (const auto& [name, mode] :
       {std::pair("zeros", ErasingMode::kConst), std::pair("colours", ErasingMode::kRand),
        std::pair("noise", ErasingMode::kPixel)}) {
    add(std::string("erasing ") + name, [mode = mode](auto& c) {
      c.transform.augment.erasing = 0.7;
      c.transform.augment.erasing_mode = mode;
      c.transform.augment.erasing_count = 3;  // boxes of one picture may overlap
    });
  }
  for (const auto& [name, mode] : {std::pair("batch", MixMode::kBatch), std::pair("pair", MixMode::kPair),
                                   std::pair("element", MixMode::kElement)}) {
    add(std::string("mixing by ") + name, [mode = mode](auto& c) {
      c.loader.mix.mixup = 0.8;
      c.loader.mix.cutmix = 1;
      c.loader.mix.mode = mode;
      c.loader.mix.group = 6;
      c.transform.augment.erasing = 0.5;
      c.transform.augment.erasing_mode = ErasingMode::kPixel;
    });
  }
  add("partners of other ranks", [](auto& c) {
    c.loader.world = 8;
    c.loader.accumulation = 3;
    c.loader.mix.mixup = 1;
    c.loader.mix.cutmix_minmax = {0.2F, 0.6F};
    c.loader.mix.mode = MixMode::kElement;
    c.transform.augment.erasing = 0.5;
    c.transform.augment.erasing_mode = ErasingMode::kRand;
  });
  add("copies and a short last step", [](auto& c) {
    c.loader.mix.cutmix = 1;
    c.loader.world = 2;
    c.loader.order.repeats = 3;
    c.loader.order.remainder = Remainder::kKeep;
  });
  return cases;
}

}  // namespace tessera::data
