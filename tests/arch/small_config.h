// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tessera/arch/vit.h"

namespace tessera::arch {

/// 16 patches and a class token of width 64, two blocks of 4 heads, 10 classes.
inline VitConfig small_config() {
  VitConfig config;
  config.image_size = 32;
  config.patch_size = 8;
  config.width = 64;
  config.depth = 2;
  config.heads = 4;
  config.mlp_width = 256;
  config.classes = 10;
  return config;
}

}  // namespace tessera::arch
