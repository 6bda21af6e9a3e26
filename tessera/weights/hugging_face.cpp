// SPDX-License-Identifier: Apache-2.0
// transformers' ViTForImageClassification and ViTModel, by the names that files on the hub have. Source:
// transformers/models/vit/modeling_vit.py. Sizes come from config.json beside the file.
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/weights/hugging_face_config.h"
#include "tessera/weights/shapes.h"

namespace tessera::weights {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHuggingFacePatch = "embeddings.patch_embeddings.projection.weight";
constexpr const char* kModel = "vit.";

void link_projections(Mapping& mapping, const std::string& ours, const std::string& theirs, int64_t width) {
  int64_t place = 0;
  for (const char* name : {".query", ".key", ".value"}) {
    mapping.link({.ours = ours + ".weight",
                  .ours_begin = place * width * width,
                  .theirs = theirs + name + ".weight",
                  .dims = {width, width},
                  .order = {}},
                 {width, width});
    mapping.link({.ours = ours + ".bias",
                  .ours_begin = place * width,
                  .theirs = theirs + name + ".bias",
                  .dims = {width},
                  .order = {}},
                 {width});
    ++place;
  }
}

Mapping link_hugging_face(const arch::VitConfig& config) {
  Mapping mapping = mapping_of(config);
  const std::string model = kModel;
  mapping.same("cls_token", model + "embeddings.cls_token");
  mapping.same("pos_embed", model + "embeddings.position_embeddings");
  mapping.layer("patch_embed.proj", model + "embeddings.patch_embeddings.projection");
  for (int64_t i = 0; i < config.depth; ++i) {
    const std::string ours = concat("blocks.", i), theirs = concat(model, "encoder.layer.", i);
    mapping.layer(ours + ".norm1", theirs + ".layernorm_before");
    link_projections(mapping, ours + ".attn.qkv", theirs + ".attention.attention", config.width);
    mapping.layer(ours + ".attn.proj", theirs + ".attention.output.dense");
    mapping.layer(ours + ".norm2", theirs + ".layernorm_after");
    mapping.layer(ours + ".mlp.fc1", theirs + ".intermediate.dense");
    mapping.layer(ours + ".mlp.fc2", theirs + ".output.dense");
  }
  mapping.layer("norm", model + "layernorm");
  if (config.classes > 0) mapping.layer("head", "classifier");
  return mapping;
}

/// Names with "vit." before those of the network, whether the file has it (ViTForImageClassification) or not
/// (ViTModel). The pooler, which belongs to pretraining, is left out.
Named named(const Opened& opened, Description& description) {
  Named tensors{opened.source, {}, opened.file.string()};
  const auto& all = opened.source->tensors();
  bool bare = false, pooler = false;
  for (const auto& tensor : all) bare = bare || tensor.name == kHuggingFacePatch;
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string name =
        bare && !all[i].name.starts_with("classifier.") ? kModel + all[i].name : all[i].name;
    if (name.starts_with("vit.pooler.")) {
      pooler = true;
    } else {
      tensors.index.emplace(name, i);
    }
  }
  if (pooler) description.notes.emplace_back("the pooler of pretraining is left out");
  return tensors;
}

}  // namespace

Foreign read_hugging_face(const Opened& opened, const FamilyOptions& options) {
  Description description;
  description.family = Family::kHuggingFace;
  description.variant = "Hugging Face";
  set_pixels(description.pixels, /*imagenet=*/false);
  Named tensors = named(opened, description);
  const fs::path folder = opened.file.parent_path(), config_file = folder / "config.json";
  arch::VitConfig& c = description.config;
  const Shape& patch = need_shape(tensors, std::string(kModel) + kHuggingFacePatch, 4);
  if (fs::exists(config_file)) {
    read_hugging_face_config(read_file(config_file), config_file.string(), description);
  } else {
    c.width = patch[0];
    c.channels = patch[1];
    c.patch_size = patch[2];
    c.depth = count_blocks(tensors, "vit.encoder.layer.", ".layernorm_before.weight");
    c.mlp_width = need_shape(tensors, "vit.encoder.layer.0.intermediate.dense.weight", 2)[0];
    c.norm_epsilon = kHuggingFaceEpsilon;
    description.notes.push_back(
        concat("no config.json beside the file: norm_epsilon ", c.norm_epsilon, ", its default"));
    const Grid grid =
        grid_of(need_shape(tensors, "vit.embeddings.position_embeddings", 3)[1] - 1, 0, tensors.where);
    c.image_size = grid.side * c.patch_size;
    c.heads = heads_of(c, options, description, tensors.where);
  }
  const Shape* head = find_shape(tensors, "classifier.weight");
  c.classes = head == nullptr ? 0 : need_shape(tensors, "classifier.weight", 2)[0];
  description.classes.resize(std::min(description.classes.size(), static_cast<size_t>(c.classes)));
  const fs::path preprocessor = folder / "preprocessor_config.json";
  if (fs::exists(preprocessor)) {
    read_preprocessor_config(read_file(preprocessor), preprocessor.string(), description.pixels);
  } else {
    description.notes.emplace_back(
        "mean and std are 0.5: there is no preprocessor_config.json beside the file");
  }
  check_config(c, tensors.where);
  return {std::move(description), std::move(tensors), link_hugging_face(c)};
}

Mapping hugging_face_mapping(const arch::VitConfig& c) {
  const auto refuse = [](const char* what) {
    user_error("weights.export", "a model that transformers' ViT has: found ", what,
               " (export to timm instead)");
  };
  if (c.pool != arch::Pool::kClassToken) refuse("another pool than the class token");
  if (c.head == arch::Head::kTanh) refuse("a head of two layers");
  if (c.registers > 0) refuse("register tokens");
  if (c.distillation_token) refuse("a distillation token");
  if (c.layer_scale > 0) refuse("LayerScale");
  if (c.qk_norm) refuse("norms of queries and keys");
  return link_hugging_face(c);
}

}  // namespace tessera::weights
