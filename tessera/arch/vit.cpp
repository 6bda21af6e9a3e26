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
  is_layer_scale(c.layer_scale);
  is_fraction("norm_epsilon", c.norm_epsilon);
}

}  // namespace

void check(const VitConfig& c) {
  check_ranges(c);
  check_patches(c.image_size, c.patch_size);
  if (c.width % c.heads != 0) {
    wrong_value("heads", concat(c.heads, ", which does not divide width ", c.width), "a divisor of width",
                nearest_that(c.heads, c.width, [&](int64_t heads) { return c.width % heads == 0; }));
  }
  if (c.pool == Pool::kClassToken && !c.class_token) {
    wrong_value("pool", "\"cls\", but class_token is false", "a class token",
                "set class_token = true, or pool = \"gap\" or \"map\"");
  }
  if (c.distillation_token && (c.pool != Pool::kClassToken || c.registers > 0 || c.head != Head::kLinear)) {
    wrong_value("distillation_token", "true, but pool, registers or head are not those of a DeiT",
                "pool = \"cls\", registers = 0 and a linear head");
  }
  if (c.position_embedding == PositionEmbedding::kSinCos2d && c.width % 4 != 0) {
    wrong_value("position_embedding", concat("\"sincos2d\", but width is ", c.width),
                "a width that is a multiple of 4");
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
