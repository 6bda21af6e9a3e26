// SPDX-License-Identifier: Apache-2.0
#include "tessera/arch/vit.h"

#include "tessera/arch/checks.h"
#include "tessera/base/error.h"

namespace tessera::arch {
namespace {

// The bounds keep every product in this room below 2^63.
void check_ranges(const VitConfig& c) {
  in_range("image_size", c.image_size, 1, 1 << 16);
  in_range("patch_size", c.patch_size, 1, 1 << 16);
  in_range("channels", c.channels, 1, 1024);
  in_range("width", c.width, 1, 1 << 20);
  in_range("depth", c.depth, 1, 4096);
  in_range("heads", c.heads, 1, 1 << 16);
  in_range("mlp_width", c.mlp_width, 1, 1 << 22);
  in_range("classes", c.classes, 1, 1 << 27);
  in_range("registers", c.registers, 0, 1 << 16);
  is_rate("drop_path", c.drop_path);
  is_rate("dropout", c.dropout);
  if (!(c.layer_scale >= 0.0 && c.layer_scale <= 1e6)) {
    user_error("arch.check", "layer_scale must be between 0 (none) and 1e6: found ", c.layer_scale);
  }
  if (!(c.norm_epsilon > 0.0 && c.norm_epsilon <= 1.0)) {
    user_error("arch.check", "norm_epsilon must be above 0 and at most 1: found ", c.norm_epsilon);
  }
}

}  // namespace

void check(const VitConfig& c) {
  check_ranges(c);
  if (c.image_size % c.patch_size != 0) {
    user_error("arch.check", "image_size must be a multiple of patch_size: found ", c.image_size, " and ",
               c.patch_size, nearest_that(c.image_size, c.image_size + c.patch_size, [&](int64_t size) {
                 return size % c.patch_size == 0;
               }));
  }
  if (c.width % c.heads != 0) {
    user_error("arch.check", "heads must divide width: found ", c.heads, " heads and width ", c.width,
               nearest_that(c.heads, c.width, [&](int64_t heads) { return c.width % heads == 0; }));
  }
  if (c.pool == Pool::kClassToken && !c.class_token) {
    user_error("arch.check", "pool \"cls\" needs a class token: found class_token = false ",
               "(set class_token = true, or pool = \"gap\" or \"map\")");
  }
  if (c.distillation_token && (c.pool != Pool::kClassToken || c.registers > 0 || c.head != Head::kLinear)) {
    user_error("arch.check",
               "distillation_token needs pool \"cls\", no registers and a linear head, as DeiT ",
               "has: found another of them");
  }
  if (c.position_embedding == PositionEmbedding::kSinCos2d && c.width % 4 != 0) {
    user_error("arch.check", "position_embedding \"sincos2d\" needs a width that is a multiple of 4: found ",
               c.width);
  }
}

int64_t parameter_count(const VitConfig& config) {
  int64_t sum = 0;
  for (const auto& spec : parameters(config)) {
    if (!spec.buffer) sum += spec.numel();
  }
  return sum;
}

std::string describe(const VitConfig& config) {
  return concat("ViT, width ", config.width, ", depth ", config.depth, ", heads ", config.heads, ", patch ",
                config.patch_size, ", ", config.tokens(), " tokens of a ", config.image_size, " px image");
}

}  // namespace tessera::arch
