// SPDX-License-Identifier: Apache-2.0
// transformers' ViT and DeiT, with and without classifier, by the names that files on the hub have and those
// of state_dict() in memory. Source: transformers/models/{vit,deit}/modeling_*.py. Sizes come from
// config.json beside the file.
#include "tessera/base/error.h"
#include "tessera/base/words.h"
#include "tessera/weights/hugging_face_config.h"
#include "tessera/weights/shapes.h"

namespace tessera::weights {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHuggingFacePatch = "embeddings.patch_embeddings.projection.weight";
constexpr const char* kModel = "vit.";
constexpr const char* kDistillationToken = "vit.embeddings.distillation_token";

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
  // DeiT's second token: with a head of its own, or one that the classifier does not read.
  if (config.distillation_token) mapping.same("dist_token", kDistillationToken);
  if (config.registers > 0) mapping.same("reg_token", kDistillationToken);
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
  if (config.classes > 0 && config.distillation_token) {
    mapping.layer("head", "cls_classifier");
    mapping.layer("head_dist", "distillation_classifier");
  } else if (config.classes > 0) {
    mapping.layer("head", "classifier");
  }
  return mapping;
}

/// The name in files of what transformers 5 calls otherwise in memory (torch.save(model.state_dict())).
std::string name_in_files(std::string name) {
  constexpr std::string_view kInMemory = "vit.layers.";
  if (!name.starts_with(kInMemory)) return name;
  name.replace(0, kInMemory.size(), "vit.encoder.layer.");
  for (const auto& [in_memory, in_files] :
       {std::pair(".attention.q_proj.", ".attention.attention.query."),
        std::pair(".attention.k_proj.", ".attention.attention.key."),
        std::pair(".attention.v_proj.", ".attention.attention.value."),
        std::pair(".attention.o_proj.", ".attention.output.dense."),
        std::pair(".mlp.fc1.", ".intermediate.dense."), std::pair(".mlp.fc2.", ".output.dense.")}) {
    replace_all(name, in_memory, in_files);
  }
  return name;
}

bool is_of_pretraining(const std::string& name) {
  return name.starts_with("vit.pooler.") || name == "vit.embeddings.mask_token" ||
         name.starts_with("decoder.");
}

/// Names with "vit." before those of the network, whatever wraps them in the file: nothing (ViTModel),
/// "deit.", or what DataParallel and others put before every name. What belongs to pretraining is left out.
Named named(const Opened& opened, Description& description) {
  Named tensors{opened.source, {}, opened.file.string()};
  const auto& all = opened.source->tensors();
  std::string before;
  for (const auto& tensor : all) {
    if (tensor.name.ends_with(kHuggingFacePatch))
      before = tensor.name.substr(0, tensor.name.size() - std::string_view(kHuggingFacePatch).size());
  }
  std::string network;
  for (const std::string_view known : {"deit.", "vit."}) {
    if (network.empty() && (before == known || before.ends_with(concat('.', known)))) network = known;
  }
  const std::string outer = before.substr(0, before.size() - network.size());
  std::vector<std::string> left_out;
  for (size_t i = 0; i < all.size(); ++i) {
    std::string name = all[i].name;
    if (name.starts_with(outer)) name.erase(0, outer.size());
    const bool of_head = name.find("classifier.") != std::string::npos || name.starts_with("decoder.");
    if (network.empty() && !of_head) {
      name.insert(0, kModel);
    } else if (!network.empty() && name.starts_with(network)) {
      name.replace(0, network.size(), kModel);
    }
    name = name_in_files(std::move(name));
    if (is_of_pretraining(name)) {
      left_out.push_back(name);
    } else {
      tensors.index.emplace(name, i);
    }
  }
  if (!left_out.empty()) {
    description.notes.push_back(
        concat(left_out.size(), " tensors of pretraining are left out (", left_out.front(), ", ...)"));
  }
  return tensors;
}

/// Outputs of the head, or heads, and DeiT's second token.
void set_head(const Named& tensors, arch::VitConfig& c) {
  const bool two_heads = find_shape(tensors, "cls_classifier.weight") != nullptr;
  const char* head = two_heads ? "cls_classifier.weight" : "classifier.weight";
  c.classes = find_shape(tensors, head) == nullptr ? 0 : need_shape(tensors, head, 2)[0];
  if (find_shape(tensors, kDistillationToken) == nullptr) return;
  c.distillation_token = two_heads;
  c.registers = two_heads ? 0 : 1;
}

/// Names that transformers makes up are no names.
void drop_made_up_names(std::vector<std::string>& classes) {
  for (size_t i = 0; i < classes.size(); ++i) {
    if (classes[i] != concat("LABEL_", i)) return;
  }
  classes.clear();
}

}  // namespace

Foreign read_hugging_face(const Opened& opened, const FamilyOptions& options) {
  Description description;
  description.family = Family::kHuggingFace;
  description.variant = "Hugging Face";
  set_pixels(description.pixels, /*imagenet=*/false);
  const fs::path folder = opened.file.parent_path(), config_file = folder / "config.json";
  if (opened.files->exists(config_file)) {
    if (const std::string type = hugging_face_model_type(opened.files->read_whole(config_file));
        !type.empty())
      check_hugging_face_model_type(type, config_file.string());
  }
  Named tensors = named(opened, description);
  arch::VitConfig& c = description.config;
  const Shape& patch = need_shape(tensors, std::string(kModel) + kHuggingFacePatch, 4);
  if (opened.files->exists(config_file)) {
    read_hugging_face_config(opened.files->read_whole(config_file), config_file.string(), description);
  } else {
    c.width = patch[0];
    c.channels = patch[1];
    c.patch_size = patch[2];
    c.depth = count_blocks(tensors, "vit.encoder.layer.", ".layernorm_before.weight");
    c.mlp_width = need_shape(tensors, "vit.encoder.layer.0.intermediate.dense.weight", 2)[0];
    c.norm_epsilon = kHuggingFaceEpsilon;
    description.notes.push_back(
        concat("no config.json beside the file: norm_epsilon ", c.norm_epsilon, ", its default"));
    const int64_t others = find_shape(tensors, kDistillationToken) == nullptr ? 1 : 2;
    const Grid grid =
        grid_of(need_shape(tensors, "vit.embeddings.position_embeddings", 3)[1] - others, 0, tensors.where);
    c.image_size = grid.side * c.patch_size;
    c.heads = heads_of(c, options, description, tensors.where);
  }
  set_head(tensors, c);
  auto& classes = description.classes;
  if (c.classes == 0) classes.clear();
  if (!classes.empty() && static_cast<int64_t>(classes.size()) != c.classes) {
    user_error({.where = "weights.config",
                .problem = concat(config_file.string(), ": id2label names ", classes.size(), " classes"),
                .expected = concat(c.classes, ", the outputs of the classifier"),
                .hint = ""});
  }
  drop_made_up_names(classes);
  const fs::path preprocessor = folder / "preprocessor_config.json";
  if (opened.files->exists(preprocessor)) {
    read_preprocessor_config(opened.files->read_whole(preprocessor), preprocessor.string(), description);
  } else {
    description.notes.emplace_back(
        "mean and std are 0.5: there is no preprocessor_config.json beside the file");
  }
  check_config(c, tensors.where);
  return {std::move(description), std::move(tensors), link_hugging_face(c)};
}

Mapping hugging_face_mapping(const arch::VitConfig& c) {
  const auto refuse = [](const char* what) {
    user_error({.where = "weights.export",
                .problem = concat("the model has ", what, ", which transformers' ViT does not support"),
                .hint = "export to timm instead"});
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
