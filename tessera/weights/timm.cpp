// SPDX-License-Identifier: Apache-2.0
// Files with timm's names: timm's own, and those of DeiT, DeiT III, MAE, DINO and DINOv2, whose code began as
// timm's. Tessera's names are the same, so this is about wrappers, what is left out, and what has no place
// here.
#include <algorithm>
#include <array>
#include <optional>
#include <regex>

#include "tessera/base/error.h"
#include "tessera/base/words.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/weights/config_fields.h"
#include "tessera/weights/hugging_face_config.h"
#include "tessera/weights/shapes.h"

namespace tessera::weights {
namespace {

constexpr const char* kTimmPatch = "patch_embed.proj.weight";
constexpr double kUsualLayerScale = 1e-5;  // the value it began with is not in the file; it has been trained

/// "module." of DataParallel, "_orig_mod." of torch.compile, how training programs call the network, and
/// "param/" of Tessera's checkpoints.
constexpr std::array<std::string_view, 7> kWrappers = {"module.",  "_orig_mod.", "model.", "backbone.",
                                                       "teacher.", "encoder.",   "param/"};

/// What stands before the patch embedding's name, if that is wrappers only or stands before every name.
std::string wrappers_of(const Opened& opened) {
  if (auto common = common_prefix(*opened.source, kTimmPatch); !common.empty()) return common;
  for (const auto& tensor : opened.source->tensors()) {
    if (!tensor.name.ends_with(kTimmPatch)) continue;
    const std::string before =
        tensor.name.substr(0, tensor.name.size() - std::string_view(kTimmPatch).size());
    std::string_view rest = before;
    for (bool moved = true; moved && !rest.empty();) {
      moved = false;
      for (const auto wrapper : kWrappers) {
        if (!rest.starts_with(wrapper)) continue;
        rest.remove_prefix(wrapper.size());
        moved = true;
      }
    }
    if (rest.empty()) return before;
  }
  user_error(
      {.where = "weights.open", .problem = concat(opened.file.string(), " has no tensor ", kTimmPatch)});
}

/// Our name of what is called differently.
std::string ours_of(const std::string& name) {
  static const std::regex chunked(R"(^blocks\.\d+\.(\d+)\.(.*)$)");  // DINOv2: blocks.CHUNK.BLOCK
  constexpr size_t kLongestName =
      256;  // of a tensor that is known; std::regex takes stack for each character
  std::smatch found;
  std::string ours = name;
  if (name.size() <= kLongestName && std::regex_match(name, found, chunked))
    ours = concat("blocks.", found[1].str(), '.', found[2].str());
  for (const auto& [from, to] : {std::pair(".gamma_1", ".ls1.gamma"), std::pair(".gamma_2", ".ls2.gamma")}) {
    if (ours.starts_with("blocks.") && ours.ends_with(from)) {
      ours.replace(ours.size() - std::string_view(from).size(), std::string::npos, to);
    }
  }
  if (ours == "register_tokens") return "reg_token";
  return ours;
}

/// What belongs to pretraining, and no network that classifies has.
bool is_left_out(const std::string& name) {
  return name == "mask_token" || name.starts_with("decoder_") || name.starts_with("head.mlp.") ||
         name.starts_with("head.last_layer") || name.starts_with("dino_head.") ||
         name.starts_with("ibot_head.");
}

std::string config_of(const std::string& weights) {
  return (std::filesystem::path(weights).parent_path() / "config.json").string();
}

[[noreturn]] void refuse(const Named& tensors, const std::string& expected, const std::string& found,
                         const std::string& advice) {
  user_error({.where = "weights.open",
              .problem = concat(tensors.where, " has ", found),
              .expected = expected,
              .hint = advice});
}

void refuse_what_has_no_place(const Named& tensors) {
  if (tensors.index.contains("blocks.0.mlp.w12.weight") ||
      tensors.index.contains("blocks.0.mlp.fc1_g.weight")) {
    refuse(tensors, "an MLP of two layers", "SwiGLU (mlp.w12), as DINOv2's giants have",
           "take DINOv2 of size S, B or L");
  }
  if (tensors.index.contains("blocks.0.attn.q_bias")) {
    refuse(tensors, "a ViT with biases of queries, keys and values", "a BEiT or EVA (attn.q_bias)",
           "this model is not supported");
  }
}

std::string variant_of(const Named& tensors, const Opened& opened, bool left_out_decoder) {
  if (left_out_decoder) return "MAE, pretrained";
  const auto& names = opened.source->tensors();
  const auto has = [&](std::string_view end) {
    return std::any_of(names.begin(), names.end(), [&](const auto& t) { return t.name.ends_with(end); });
  };
  if (!opened.recipe_toml.empty()) return "Tessera";
  if (has("mask_token") && tensors.index.contains("blocks.0.ls1.gamma")) {
    return tensors.index.contains("reg_token") ? "DINOv2 with registers" : "DINOv2";
  }
  if (has(".gamma_1")) return "DeiT III";
  if (tensors.index.contains("dist_token")) return "DeiT, distilled";
  if (has("head.last_layer.weight") || opened.nested.starts_with("teacher")) return "DINO";
  return "timm";
}

Mapping mapping_for(const arch::VitConfig& config, int64_t position_rows) {
  Mapping mapping = mapping_of(config);
  for (const auto& name : mapping.ours_in_order()) {
    if (name == "pos_embed") {
      link_positions(mapping, config, name, position_rows);
    } else {
      mapping.same(name, name);
    }
  }
  return mapping;
}

/// The pool that config.json names, checked against the tensors, which cannot tell all of them apart.
void set_pool(const TimmConfig& said, const Named& tensors, arch::VitConfig& c) {
  const auto wrong = [&](const std::string& what, const std::string& expected) {
    user_error({.where = "weights.config",
                .problem = concat(config_of(tensors.where), ": ", what),
                .expected = expected,
                .hint = "config.json and weights contradict each other, or Tessera has no such model"});
  };
  const bool fc_norm = tensors.index.contains("fc_norm.weight");
  if (said.fc_norm && *said.fc_norm != fc_norm) {
    wrong(
        concat("fc_norm is ", *said.fc_norm ? "true" : "false"),
        concat(fc_norm ? "true" : "false", ", as there is ", fc_norm ? "a" : "no", " tensor fc_norm.weight"));
  }
  if (!said.global_pool) return;
  const std::string& pool = *said.global_pool;
  if (pool.empty() && c.classes == 0) return;
  const std::string found = concat("global_pool is \"", escape(pool), '"');
  if (pool != "token" && pool != "avg" && pool != "map") wrong(found, "\"token\", \"avg\" or \"map\"");
  if ((pool == "map") != (c.pool == arch::Pool::kAttention)) {
    wrong(found, pool == "map" ? "tensors attn_pool.*, which the weights lack"
                               : "\"map\", as there are tensors attn_pool.*");
  }
  if (pool == "token" && (fc_norm || !c.class_token))
    wrong(found,
          fc_norm ? "\"avg\", as there is a tensor fc_norm.weight" : "\"avg\", as there is no cls_token");
  if (pool == "avg" && c.pool == arch::Pool::kClassToken) {
    c.pool = arch::Pool::kAverage;
    c.norm_before_pool = true;  // timm's fc_norm=False beside a class token, which the average leaves out
  }
}

/// Names of classes in config.json: as many as the head has outputs. A model without a head has none.
void check_class_names(const Named& tensors, Description& description) {
  auto& names = description.classes;
  const int64_t outputs = description.config.classes;
  if (outputs == 0) names.clear();
  if (names.empty() || static_cast<int64_t>(names.size()) == outputs) return;
  user_error({.where = "weights.config",
              .problem = concat(config_of(tensors.where), ": label_names names ", names.size(), " classes"),
              .expected = concat(outputs, ", the outputs of the head"),
              .hint = ""});
}

/// Errors: UserError where config.json and the tensors differ in what both say.
void check_sizes(const TimmConfig& said, const Named& tensors, const arch::VitConfig& c) {
  const auto same = [&](const char* field, std::optional<int64_t> value, int64_t found, const char* what) {
    if (!value || *value == found) return;
    user_error({.where = "weights.config",
                .problem = concat(config_of(tensors.where), ": ", field, " is ", *value),
                .expected = concat(found, ", ", what),
                .hint = "state in config.json what the weights were trained with"});
  };
  same("input_size", said.input_side, c.image_size, "the pixels that the weights have positions for");
  if (c.classes > 0) same("num_classes", said.classes, c.classes, "the outputs of the head");
}

void set_sizes(const Named& tensors, Description& description, const FamilyOptions& options,
               int64_t& position_rows) {
  arch::VitConfig& c = description.config;
  const Shape& patch = need_shape(tensors, kTimmPatch, 4);
  c.width = patch[0];
  c.channels = patch[1];
  c.patch_size = patch[2];
  c.depth = count_blocks(tensors, "blocks.", ".norm1.weight");
  c.mlp_width = need_shape(tensors, "blocks.0.mlp.fc1.weight", 2)[0];
  c.class_token = tensors.index.contains("cls_token");
  c.distillation_token = tensors.index.contains("dist_token");
  c.registers = tensors.index.contains("reg_token") ? need_shape(tensors, "reg_token", 3)[1] : 0;
  c.layer_scale = tensors.index.contains("blocks.0.ls1.gamma") ? kUsualLayerScale : 0;
  c.qk_norm = tensors.index.contains("blocks.0.attn.q_norm.weight");
  c.head = tensors.index.contains("pre_logits.fc.weight") ? arch::Head::kTanh : arch::Head::kLinear;
  if (tensors.index.contains("attn_pool.latent")) {
    c.pool = arch::Pool::kAttention;
  } else if (tensors.index.contains("fc_norm.weight")) {
    c.pool = arch::Pool::kAverage;
  } else if (!c.class_token) {
    c.pool = arch::Pool::kAverage;
    c.norm_before_pool = true;  // timm's fc_norm=False
  }
  const Grid grid = grid_of(need_shape(tensors, "pos_embed", 3)[1], c.prefix_tokens(), tensors.where);
  position_rows = grid.prefix_rows;
  c.image_size = grid.side * c.patch_size;
  const Shape* head = find_shape(tensors, "head.weight");
  c.classes = head == nullptr ? 0 : need_shape(tensors, "head.weight", 2)[0];
  c.heads = heads_of(c, options, description, tensors.where);
}

/// What a file of timm holds.
struct TimmTensors {
  Named tensors;
  std::vector<std::string> left_out = {};  // of pretraining, or beside the network
  bool has_decoder = false;                // among those left out
};

TimmTensors tensors_of(const Opened& opened) {
  const std::string prefix = wrappers_of(opened);
  TimmTensors found{.tensors = {opened.source, {}, opened.file.string()}};
  for (size_t i = 0; i < opened.source->tensors().size(); ++i) {
    const std::string& full = opened.source->tensors()[i].name;
    if (!full.starts_with(prefix)) {  // a projection head beside the wrapped network, or an optimizer's state
      if (opened.kind != Opened::Kind::kTessera) found.left_out.push_back(full);
      continue;
    }
    const std::string name = ours_of(full.substr(prefix.size()));
    if (is_left_out(name)) {
      found.has_decoder = found.has_decoder || name.starts_with("decoder_");
      found.left_out.push_back(name);
      continue;
    }
    if (!found.tensors.index.emplace(name, i).second) {
      refuse(found.tensors, "one tensor " + name, "several", "this model is not supported");
    }
  }
  refuse_what_has_no_place(found.tensors);
  return found;
}

}  // namespace

Foreign read_timm(const Opened& opened, const FamilyOptions& options) {
  auto [tensors, left_out, has_decoder] = tensors_of(opened);
  Description description;
  description.family = Family::kTimm;
  description.variant = variant_of(tensors, opened, has_decoder);
  set_pixels(description.pixels, /*imagenet=*/true);
  if (!left_out.empty()) {
    description.notes.push_back(
        concat(left_out.size(), " tensors of pretraining are left out (", left_out.front(), ", ...)"));
  }
  const std::string config_file = config_of(tensors.where);
  std::optional<TimmConfig> said;
  if (opened.recipe_toml.empty() && opened.files->exists(config_file)) {  // a recipe knows more
    said = read_timm_config(opened.files->read_whole(config_file), config_file, description);
    if (!said)
      description.notes.push_back(concat(config_file, " is not read: it is no configuration of timm"));
  }
  if (description.variant == "timm" && !said) {
    description.notes.push_back(
        "mean and std are ImageNet's: the file does not say (AugReg's models want 0.5)");
  }
  const TimmArchitecture trained = timm_architecture(opened.architecture);
  if (!said && !trained.refused.empty()) {
    user_error({.where = "weights.open",
                .problem = concat(tensors.where, ": arch is \"", escape(opened.architecture),
                                  "\", which has ", trained.refused),
                .expected = "an architecture that Tessera's ViT computes",
                .hint = ""});
  }
  int64_t position_rows = 0;
  FamilyOptions how = options;
  if (!said && how.heads == 0) how.heads = trained.heads;
  if (said && how.heads == 0) how.heads = said->heads;
  set_sizes(tensors, description, how, position_rows);
  if (said) {
    set_pool(*said, tensors, description.config);
    check_sizes(*said, tensors, description.config);
    check_class_names(tensors, description);
  }
  check_config(description.config, tensors.where);
  Mapping mapping = mapping_for(description.config, position_rows);
  return {std::move(description), std::move(tensors), std::move(mapping)};
}

Mapping timm_mapping(const arch::VitConfig& config) { return mapping_for(config, config.prefix_tokens()); }

}  // namespace tessera::weights
