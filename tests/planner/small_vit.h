// SPDX-License-Identifier: Apache-2.0
// The model of the planner's tests.
#pragma once

#include "tessera/arch/model.h"

namespace tessera::planner {

/// All blocks are of one kind, since the head reads every token.
inline arch::VitConfig vit(int64_t depth) {
  arch::VitConfig config;
  config.image_size = 32;
  config.patch_size = 8;
  config.width = 64;
  config.depth = depth;
  config.heads = 4;
  config.mlp_width = 256;
  config.classes = 10;
  config.pool = arch::Pool::kAverage;
  config.class_token = false;
  return config;
}

}  // namespace tessera::planner
