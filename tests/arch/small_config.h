// SPDX-License-Identifier: Apache-2.0
// Models that tests compute quickly.
#pragma once

#include "tessera/arch/resmlp.h"
#include "tessera/arch/vit.h"

namespace tessera::arch {

/// What a ViT and a ResMLP have in common. As it is: 16 patches of width 64, two blocks.
struct SmallSizes {
  int64_t image_size = 32, patch_size = 8, channels = 3, width = 64, depth = 2, mlp_width = 256, classes = 10;
};

/// All else as the configuration has it.
template <typename Config>
Config small(const SmallSizes& sizes) {
  Config config;
  config.image_size = sizes.image_size;
  config.patch_size = sizes.patch_size;
  config.channels = sizes.channels;
  config.width = sizes.width;
  config.depth = sizes.depth;
  config.mlp_width = sizes.mlp_width;
  config.classes = sizes.classes;
  return config;
}

inline VitConfig small_vit(const SmallSizes& sizes, int64_t heads) {
  auto config = small<VitConfig>(sizes);
  config.heads = heads;
  return config;
}

/// With a class token and 4 heads.
inline VitConfig small_config() { return small_vit({}, 4); }

}  // namespace tessera::arch
