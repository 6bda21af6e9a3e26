// SPDX-License-Identifier: Apache-2.0
// Google's .npz files. Linear layers are (in, out), attention is (width, heads, head width), convolutions are
// (height, width, in, out). Source: google-research/vision_transformer (models_vit.py) and big_vision
// (models/vit.py), whose submodules Flax numbers differently.
#include "tessera/base/error.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/weights/shapes.h"

namespace tessera::weights {
namespace {

constexpr const char* kGooglePatch = "embedding/kernel";

/// What differs between the files of one and of the other.
struct Layout {
  bool big_vision = false;
  bool stacked = false;  // all blocks in one tensor, along its first dim
  std::string positions = "Transformer/posembed_input/pos_embedding";
  int64_t position_rows = 0;  // before those of the patches

  std::string attention() const {
    return big_vision ? "MultiHeadDotProductAttention_0" : "MultiHeadDotProductAttention_1";
  }
  std::string second_norm() const { return big_vision ? "LayerNorm_1" : "LayerNorm_2"; }
  std::string mlp() const { return big_vision ? "MlpBlock_0" : "MlpBlock_3"; }
  std::string block(int64_t i) const {
    return stacked ? "Transformer/encoderblock" : concat("Transformer/encoderblock_", i);
  }
};

/// Links of one block, or, at index -1, of what is no block.
class Linker {
 public:
  Linker(Mapping& mapping, const arch::VitConfig& config, int64_t stack = 0, int64_t index = 0)
      : mapping_(mapping), config_(config), stack_(stack), index_(index) {}

  void put(const std::string& ours, const std::string& theirs, Shape dims, std::vector<size_t> order = {},
           int64_t ours_begin = 0) {
    Shape whole = dims;
    if (stack_ > 0) whole.insert(whole.begin(), stack_);
    const int64_t begin = stack_ > 0 ? index_ * checkpoint::count_of(dims) : 0;
    mapping_.link({ours, ours_begin, theirs, begin, std::move(dims), std::move(order)}, whole);
  }
  void norm(const std::string& ours, const std::string& theirs) {
    put(ours + ".weight", theirs + "/scale", {config_.width});
    put(ours + ".bias", theirs + "/bias", {config_.width});
  }
  void dense(const std::string& ours, const std::string& theirs, int64_t in, int64_t out) {
    put(ours + ".weight", theirs + "/kernel", {in, out}, {1, 0});
    put(ours + ".bias", theirs + "/bias", {out});
  }
  /// A query, key or value as rows [place * width, ...) of ours.
  void projection(const std::string& ours, int64_t place, const std::string& theirs) {
    const int64_t width = config_.width, heads = config_.heads;
    put(ours + ".weight", theirs + "/kernel", {width, heads, width / heads}, {1, 2, 0},
        place * width * width);
    put(ours + ".bias", theirs + "/bias", {heads, width / heads}, {}, place * width);
  }
  void attention_out(const std::string& ours, const std::string& theirs) {
    const int64_t width = config_.width, heads = config_.heads;
    put(ours + ".weight", theirs + "/kernel", {heads, width / heads, width}, {2, 0, 1});
    put(ours + ".bias", theirs + "/bias", {width});
  }
  void mlp(const std::string& ours, const std::string& theirs) {
    dense(ours + ".fc1", theirs + "/Dense_0", config_.width, config_.mlp_width);
    dense(ours + ".fc2", theirs + "/Dense_1", config_.mlp_width, config_.width);
  }

 private:
  Mapping& mapping_;
  const arch::VitConfig& config_;
  int64_t stack_, index_;
};

void link_attention_pool(Mapping& mapping, const arch::VitConfig& config) {
  Linker linker(mapping, config);
  const std::string attention = "MAPHead_0/MultiHeadDotProductAttention_0";
  mapping.same("attn_pool.latent", "MAPHead_0/probe");
  linker.projection("attn_pool.q", 0, attention + "/query");
  linker.projection("attn_pool.kv", 0, attention + "/key");
  linker.projection("attn_pool.kv", 1, attention + "/value");
  linker.attention_out("attn_pool.proj", attention + "/out");
  linker.norm("attn_pool.norm", "MAPHead_0/LayerNorm_0");
  linker.mlp("attn_pool.mlp", "MAPHead_0/MlpBlock_0");
}

Mapping mapping_for(const arch::VitConfig& config, const Layout& layout) {
  Mapping mapping = mapping_of(config);
  Linker ends(mapping, config);
  const int64_t patch = config.patch_size;
  ends.put("patch_embed.proj.weight", kGooglePatch, {patch, patch, config.channels, config.width},
           {3, 2, 0, 1});
  ends.put("patch_embed.proj.bias", "embedding/bias", {config.width});
  link_positions(mapping, config, layout.positions, layout.position_rows);
  for (int64_t i = 0; i < config.depth; ++i) {
    Linker block(mapping, config, layout.stacked ? config.depth : 0, i);
    const std::string ours = concat("blocks.", i), theirs = layout.block(i) + '/';
    const std::string attention = theirs + layout.attention();
    block.norm(ours + ".norm1", theirs + "LayerNorm_0");
    block.projection(ours + ".attn.qkv", 0, attention + "/query");
    block.projection(ours + ".attn.qkv", 1, attention + "/key");
    block.projection(ours + ".attn.qkv", 2, attention + "/value");
    block.attention_out(ours + ".attn.proj", attention + "/out");
    block.norm(ours + ".norm2", theirs + layout.second_norm());
    block.mlp(ours + ".mlp", theirs + layout.mlp());
  }
  ends.norm("norm", "Transformer/encoder_norm");
  if (config.pool == arch::Pool::kAttention) link_attention_pool(mapping, config);
  if (config.head == arch::Head::kTanh) ends.dense("pre_logits.fc", "pre_logits", config.width, config.width);
  if (config.classes > 0) ends.dense("head", "head", config.width, config.classes);
  return mapping;
}

/// Names without what stands before "embedding/kernel": "opt/target/", "params/", "params/img/". What has
/// another beginning (an optimizer's state, a text tower) is no part of the model.
Named without_prefix(const Opened& opened) {
  Named named{opened.source, {}, opened.file.string()};
  const auto& tensors = opened.source->tensors();
  std::string prefix;
  bool found = false;
  for (const auto& tensor : tensors) {
    if (!tensor.name.ends_with(kGooglePatch)) continue;
    const std::string before =
        tensor.name.substr(0, tensor.name.size() - std::string_view(kGooglePatch).size());
    if (!before.empty() && before.back() != '/') continue;
    if (found) {
      user_error({.where = "weights.open",
                  .problem = concat(named.where, " has several models: ", prefix, kGooglePatch, " and ",
                                    tensor.name),
                  .expected = "one ViT"});
    }
    prefix = before;
    found = true;
  }
  if (!found)
    user_error({.where = "weights.open", .problem = concat(named.where, " has no tensor ", kGooglePatch)});
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name.starts_with(prefix)) named.index.emplace(tensors[i].name.substr(prefix.size()), i);
  }
  return named;
}

Layout layout_of(const Named& tensors) {
  Layout layout;
  layout.stacked = tensors.index.contains("Transformer/encoderblock/LayerNorm_0/scale");
  layout.big_vision = !tensors.index.contains(layout.block(0) + "/MlpBlock_3/Dense_0/kernel");
  if (tensors.index.contains("pos_embedding")) layout.positions = "pos_embedding";
  return layout;
}

}  // namespace

Foreign read_google(const Opened& opened, const FamilyOptions& options) {
  Named tensors = without_prefix(opened);
  Layout layout = layout_of(tensors);
  Description description;
  description.family = layout.big_vision ? Family::kBigVision : Family::kGoogle;
  description.variant = layout.big_vision ? "big_vision" : "original";
  set_pixels(description.pixels, /*imagenet=*/false);
  description.notes.emplace_back(
      "mean and std are 0.5 and the whole image is scaled to the model's size: the file does not say");
  arch::VitConfig& c = description.config;
  const Shape& patch = need_shape(tensors, kGooglePatch, 4);
  c.patch_size = patch[0];
  c.channels = patch[2];
  c.width = patch[3];
  const std::string first = layout.block(0);
  if (layout.stacked) {
    c.depth = need_shape(tensors, first + "/LayerNorm_0/scale", 2)[0];
    c.heads = need_shape(tensors, first + '/' + layout.attention() + "/query/kernel", 4)[2];
    c.mlp_width = need_shape(tensors, first + '/' + layout.mlp() + "/Dense_0/kernel", 3)[2];
  } else {
    c.depth = count_blocks(tensors, "Transformer/encoderblock_", "/LayerNorm_0/scale");
    c.heads = need_shape(tensors, first + '/' + layout.attention() + "/query/kernel", 3)[1];
    c.mlp_width = need_shape(tensors, first + '/' + layout.mlp() + "/Dense_0/kernel", 2)[1];
  }
  c.class_token = tensors.index.contains("cls");
  c.pool = tensors.index.contains("MAPHead_0/probe") ? arch::Pool::kAttention
           : c.class_token                           ? arch::Pool::kClassToken
                                                     : arch::Pool::kAverage;
  c.norm_before_pool = c.pool == arch::Pool::kAverage;
  const int64_t rows = need_shape(tensors, layout.positions, 3)[1];
  const Grid grid = grid_of(rows, c.prefix_tokens(), tensors.where);
  layout.position_rows = grid.prefix_rows;
  c.image_size = grid.side * c.patch_size;
  c.head = tensors.index.contains("pre_logits/kernel") ? arch::Head::kTanh : arch::Head::kLinear;
  const Shape* head = find_shape(tensors, "head/kernel");
  c.classes = head == nullptr ? 0 : need_shape(tensors, "head/kernel", 2)[1];
  if (options.heads > 0 && options.heads != c.heads) {
    user_error({.where = "weights.open",
                .problem = concat("--heads is ", options.heads, ", but ", tensors.where, " has ", c.heads,
                                  " heads")});
  }
  check_config(c, tensors.where);
  Mapping mapping = mapping_for(c, layout);
  if (c.class_token) mapping.same("cls_token", "cls");
  return {std::move(description), std::move(tensors), std::move(mapping)};
}

namespace {

void check_google(const arch::VitConfig& c, const char* family) {
  const auto refuse = [&](const char* what) {
    user_error({.where = "weights.export",
                .problem = concat("the model has ", what, ", which ", family, " does not support"),
                .hint = "export to timm instead"});
  };
  if (c.registers > 0) refuse("register tokens");
  if (c.distillation_token) refuse("a distillation token");
  if (c.layer_scale > 0) refuse("LayerScale");
  if (c.qk_norm) refuse("norms of queries and keys");
  if (c.pool != arch::Pool::kAverage) return;
  if (!c.norm_before_pool) refuse("a norm after the average of the patches");
  if (c.class_token) refuse("a class token beside the average of the patches");
}

}  // namespace

Mapping google_mapping(const arch::VitConfig& config) {
  check_google(config, "the original ViT");
  if (config.pool == arch::Pool::kAttention) {
    user_error({.where = "weights.export",
                .problem = "the model has an attention pool, which the original ViT does not support",
                .hint = "export to big_vision"});
  }
  Layout layout;
  layout.position_rows = config.prefix_tokens();
  Mapping mapping = mapping_for(config, layout);
  if (config.class_token) mapping.same("cls_token", "cls");
  return mapping;
}

Mapping big_vision_mapping(const arch::VitConfig& config) {
  check_google(config, "big_vision");
  Layout layout;
  layout.big_vision = true;
  layout.positions = "pos_embedding";  // of the patches alone: the class token's row goes into the token
  Mapping mapping = mapping_for(config, layout);
  if (config.class_token) {
    mapping.link({.ours = "cls_token",
                  .theirs = "cls",
                  .dims = {1, 1, config.width},
                  .order = {},
                  .added = "pos_embed"},
                 {1, 1, config.width});
  }
  return mapping;
}

}  // namespace tessera::weights
