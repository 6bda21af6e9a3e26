// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/models/stem_and_head.h"
#include "tessera/ops/linear.h"

namespace tessera::models {

Stem::Stem(const ParameterMap& map, const arch::VitConfig& config)
    : config_(config),
      class_token_(ParameterScope(map, "").find("cls_token")),
      distillation_token_(ParameterScope(map, "").find("dist_token")),
      registers_(ParameterScope(map, "").find("reg_token")),
      position_embedding_(ParameterScope(map, "").get("pos_embed")),
      projection_(ParameterScope(map, "patch_embed.proj.")),
      dropout_(config.dropout, "pos_drop") {}

at::Tensor Stem::forward(const at::Tensor& images, const ForwardContext& context) {
  TESSERA_CHECK(images.dim() == 4 && images.size(1) == config_.channels &&
                    images.size(2) == config_.image_size && images.size(3) == config_.image_size,
                "images of another size: ", images.sizes());
  const at::Tensor embedded =
      ops::linear(unfold_patches(images, config_.patch_size, projection_.weight.scalar_type()),
                  projection_.weight, projection_.bias);
  const at::Tensor tokens = with_prefix(embedded) + positions(embedded.scalar_type(), embedded.device());
  return dropout_(tokens, context);
}

at::Tensor Stem::with_prefix(const at::Tensor& tokens) const {
  std::vector<at::Tensor> parts;
  for (const auto& prefix : {class_token_, distillation_token_, registers_}) {
    if (prefix.defined()) {
      parts.push_back(prefix.expand({tokens.size(0), -1, -1}));
    }
  }
  if (parts.empty()) return tokens;
  parts.push_back(tokens);
  return at::cat(parts, 1);
}

const at::Tensor& Stem::positions(at::ScalarType dtype, at::Device device) {
  if (config_.position_embedding == arch::PositionEmbedding::kLearned) {
    return position_embedding_;
  }
  if (!fixed_positions_.defined() || fixed_positions_.scalar_type() != dtype ||
      fixed_positions_.device() != device) {
    fixed_positions_ = position_embedding_.to(device, dtype);
  }
  return fixed_positions_;
}

}  // namespace tessera::models
