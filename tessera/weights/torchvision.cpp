// SPDX-License-Identifier: Apache-2.0
// torchvision's VisionTransformer. Source: torchvision/models/vision_transformer.py; files before 0.13 call
// the layers of the MLP linear_1 and linear_2.
#include "tessera/base/error.h"
#include "tessera/weights/shapes.h"

namespace tessera::weights {
namespace {

constexpr const char* kLayer = "encoder.layers.encoder_layer_";

Mapping link_torchvision(const arch::VitConfig& config) {
  Mapping mapping = mapping_of(config);
  mapping.same("cls_token", "class_token");
  mapping.same("pos_embed", "encoder.pos_embedding");
  mapping.layer("patch_embed.proj", "conv_proj");
  for (int64_t i = 0; i < config.depth; ++i) {
    const std::string ours = concat("blocks.", i), theirs = concat(kLayer, i);
    mapping.layer(ours + ".norm1", theirs + ".ln_1");
    mapping.same(ours + ".attn.qkv.weight", theirs + ".self_attention.in_proj_weight");
    mapping.same(ours + ".attn.qkv.bias", theirs + ".self_attention.in_proj_bias");
    mapping.layer(ours + ".attn.proj", theirs + ".self_attention.out_proj");
    mapping.layer(ours + ".norm2", theirs + ".ln_2");
    mapping.layer(ours + ".mlp.fc1", theirs + ".mlp.0");
    mapping.layer(ours + ".mlp.fc2", theirs + ".mlp.3");
  }
  mapping.layer("norm", "encoder.ln");
  if (config.head == arch::Head::kTanh) mapping.layer("pre_logits.fc", "heads.pre_logits");
  if (config.classes > 0) mapping.layer("head", "heads.head");
  return mapping;
}

std::string today(std::string name) {
  for (const auto& [from, to] :
       {std::pair(".mlp.linear_1.", ".mlp.0."), std::pair(".mlp.linear_2.", ".mlp.3.")}) {
    if (const size_t at = name.find(from); at != std::string::npos)
      name.replace(at, std::string(from).size(), to);
  }
  return name;
}

}  // namespace

Foreign read_torchvision(const Opened& opened, const FamilyOptions& options) {
  Named tensors{opened.source, {}, opened.file.string()};
  const std::string wrapper = common_prefix(*opened.source, "conv_proj.weight");
  for (size_t i = 0; i < opened.source->tensors().size(); ++i) {
    tensors.index.emplace(today(opened.source->tensors()[i].name.substr(wrapper.size())), i);
  }
  Description description;
  description.family = Family::kTorchvision;
  description.variant = "torchvision";
  set_pixels(description.pixels, /*imagenet=*/true);
  arch::VitConfig& c = description.config;
  const Shape& patch = need_shape(tensors, "conv_proj.weight", 4);
  c.width = patch[0];
  c.channels = patch[1];
  c.patch_size = patch[2];
  c.depth = count_blocks(tensors, kLayer, ".ln_1.weight");
  c.mlp_width = need_shape(tensors, std::string(kLayer) + "0.mlp.0.weight", 2)[0];
  const Grid grid = grid_of(need_shape(tensors, "encoder.pos_embedding", 3)[1] - 1, 0, tensors.where);
  c.image_size = grid.side * c.patch_size;
  c.head = tensors.index.contains("heads.pre_logits.weight") ? arch::Head::kTanh : arch::Head::kLinear;
  c.classes = find_shape(tensors, "heads.head.weight") == nullptr
                  ? 0
                  : need_shape(tensors, "heads.head.weight", 2)[0];
  c.heads = heads_of(c, options, description, tensors.where);
  check_config(c, tensors.where);
  return {std::move(description), std::move(tensors), link_torchvision(c)};
}

Mapping torchvision_mapping(const arch::VitConfig& c) {
  const auto refuse = [](const char* what) {
    user_error({.where = "weights.export",
                .problem = concat("the model has ", what, ", which torchvision does not support"),
                .hint = "export to timm instead"});
  };
  if (c.pool != arch::Pool::kClassToken) refuse("another pool than the class token");
  if (c.registers > 0) refuse("register tokens");
  if (c.distillation_token) refuse("a distillation token");
  if (c.layer_scale > 0) refuse("LayerScale");
  if (c.qk_norm) refuse("norms of queries and keys");
  return link_torchvision(c);
}

}  // namespace tessera::weights
