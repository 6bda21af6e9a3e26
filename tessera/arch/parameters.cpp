// SPDX-License-Identifier: Apache-2.0
// Every parameter of a ViT. Names, order and initial values are those of timm's VisionTransformer with its
// defaults (weight_init=''):
//   linear layers      weight truncated normal, std 0.02; bias 0 (head: VitConfig::head_bias, head_zero_init)
//   patch_embed.proj   weight and bias uniform in +-1/sqrt(channels * patch^2) (PyTorch's default for Conv2d)
//   pos_embed          truncated normal, std 0.02
//   cls_token, reg_token   normal, std 1e-6
//   dist_token         truncated normal, std 0.02; head_dist as head
//   attn_pool.latent   truncated normal, std 1/sqrt(width)
//   norms              weight 1, bias 0
//   ls1, ls2           gamma constant: VitConfig::layer_scale
// timm truncates at +-2 (not at two standard deviations), which for these values is no truncation at all;
// only attn_pool.latent is cut at two standard deviations.
//
// With InitialValues::kBigVision those of google-research/big_vision's models/vit.py and of Flax's layers:
//   linear layers      weight Xavier's uniform, +-sqrt(6/(in + out)), q, k and v a layer each; bias 0
//   MLPs               the same; bias normal, std 1e-6
//   patch_embed.proj, pre_logits.fc, head   weight LeCun's normal: cut at two standard deviations, then of
//                      variance 1/in; bias 0; head_bias and head_zero_init as above
//   pos_embed          normal, std 1/sqrt(width)
//   cls_token          0
//   attn_pool.latent   Xavier's uniform of (1, width)
// What big_vision does not have (registers, a distillation token, LayerScale) keeps timm's.
#include <algorithm>
#include <cmath>

#include "tessera/arch/cut.h"
#include "tessera/arch/vit.h"
#include "tessera/base/error.h"

namespace tessera::arch {
namespace {

/// What one tensor begins with.
struct Start {
  Init init = Init::kZero;
  double value = 0.0;
};

constexpr Start kTimmWeight{Init::kTruncatedNormal, 0.02}, kTimmToken{Init::kTruncatedNormal, 1e-6};
constexpr Start kZeros{Init::kZero}, kOnes{Init::kOne}, kBigVisionMlpBias{Init::kNormal, 1e-6};

double over_root(int64_t count) { return 1.0 / std::sqrt(static_cast<double>(count)); }

Start xavier_uniform(int64_t in, int64_t out) {
  return {Init::kUniform, std::sqrt(6.0 / static_cast<double>(in + out))};
}

Start lecun_normal(int64_t in) {
  // What is left of a normal's standard deviation when values beyond two of them are drawn again.
  constexpr double kStdWithinTwo = 0.87962566103423978;
  return {Init::kNormalWithinTwo, over_root(in) / kStdWithinTwo};
}

std::string block_name(int64_t index) { return "blocks." + std::to_string(index); }

/// Collects specs of one unit after another.
class Listing {
 public:
  explicit Listing(InitialValues whose) : whose_(whose) {}
  void unit(std::string name) { unit_ = std::move(name); }

  ParameterSpec& add(std::string name, std::vector<int64_t> shape, Start timm, Start big_vision) {
    const Start start = whose_ == InitialValues::kTimm ? timm : big_vision;
    specs_.push_back({std::move(name), std::move(shape), start.init, start.value, unit_, false, false});
    return specs_.back();
  }
  ParameterSpec& add(std::string name, std::vector<int64_t> shape, Start both) {
    return add(std::move(name), std::move(shape), both, both);
  }
  /// A linear layer of (out, in): timm's values, or these.
  void layer(const std::string& name, int64_t in, int64_t out, Start weight, Start bias = kZeros) {
    add(name + ".weight", {out, in}, kTimmWeight, weight).decay = true;
    add(name + ".bias", {out}, kZeros, bias);
  }
  /// `parts` layers of (out, in) below each other in one tensor.
  void linear(const std::string& name, int64_t in, int64_t out, int64_t parts = 1) {
    layer(name, in, parts * out, xavier_uniform(in, out));
  }
  void mlp(const std::string& name, const VitConfig& c) {
    const Start weight = xavier_uniform(c.width, c.mlp_width);
    layer(name + ".fc1", c.width, c.mlp_width, weight, kBigVisionMlpBias);
    layer(name + ".fc2", c.mlp_width, c.width, weight, kBigVisionMlpBias);
  }
  void classifier(const std::string& name, const VitConfig& c) {
    add(name + ".weight", {c.classes, c.width}, c.head_zero_init ? kZeros : kTimmWeight,
        c.head_zero_init ? kZeros : lecun_normal(c.width))
        .decay = true;
    add(name + ".bias", {c.classes}, c.head_bias == 0 ? kZeros : Start{Init::kConstant, c.head_bias});
  }
  void norm(const std::string& name, int64_t width) {
    add(name + ".weight", {width}, kOnes);
    add(name + ".bias", {width}, kZeros);
  }
  /// Of a parameter that was added, a short while ago.
  void cut(const std::string& name, Cut cut) {
    const auto found = std::find_if(specs_.rbegin(), specs_.rend(),
                                    [&](const ParameterSpec& spec) { return spec.name == name; });
    TESSERA_CHECK(found != specs_.rend(), name);
    found->cut = cut;
  }
  std::vector<ParameterSpec> take() { return std::move(specs_); }

 private:
  InitialValues whose_;
  std::string unit_;
  std::vector<ParameterSpec> specs_;
};

void list_stem(const VitConfig& c, Listing& list) {
  list.unit("stem");
  if (c.class_token) list.add("cls_token", {1, 1, c.width}, kTimmToken, kZeros);
  if (c.registers > 0) list.add("reg_token", {1, c.registers, c.width}, kTimmToken);
  // One row for every token: class token, registers, patches.
  const std::vector<int64_t> positions = {1, c.tokens(), c.width};
  if (c.position_embedding == PositionEmbedding::kSinCos2d) {
    list.add("pos_embed", positions, kZeros).buffer = true;
  } else {
    list.add("pos_embed", positions, kTimmWeight, {Init::kNormal, over_root(c.width)});
  }
  if (c.distillation_token) list.add("dist_token", {1, 1, c.width}, kTimmWeight);
  const int64_t inputs = c.channels * c.patch_size * c.patch_size;
  const Start timm{Init::kUniform, over_root(inputs)};
  list.add("patch_embed.proj.weight", {c.width, c.channels, c.patch_size, c.patch_size}, timm,
           lecun_normal(inputs))
      .decay = true;
  list.add("patch_embed.proj.bias", {c.width}, timm, kZeros);
}

void list_block(const VitConfig& c, int64_t index, Listing& list) {
  const std::string block = block_name(index);
  list.unit(block);
  list.norm(block + ".norm1", c.width);
  list.linear(block + ".attn.qkv", c.width, c.width, 3);
  if (c.qk_norm) {
    list.norm(block + ".attn.q_norm", c.head_width());
    list.norm(block + ".attn.k_norm", c.head_width());
  }
  list.linear(block + ".attn.proj", c.width, c.width);
  if (c.layer_scale > 0) list.add(block + ".ls1.gamma", {c.width}, {Init::kConstant, c.layer_scale});
  list.norm(block + ".norm2", c.width);
  list.mlp(block + ".mlp", c);
  if (c.layer_scale > 0) list.add(block + ".ls2.gamma", {c.width}, {Init::kConstant, c.layer_scale});
  // Attention by heads, the MLP by hidden units (Megatron-LM, arXiv 1909.08053).
  list.cut(block + ".attn.qkv.weight", {.dim = 0, .parts = 3, .items = c.heads});
  list.cut(block + ".attn.qkv.bias", {.dim = 0, .parts = 3, .items = c.heads});
  list.cut(block + ".attn.proj.weight", {.dim = 1, .items = c.heads});
  const int64_t hidden = hidden_items(c.mlp_width);
  list.cut(block + ".mlp.fc1.weight", {.dim = 0, .items = hidden});
  list.cut(block + ".mlp.fc1.bias", {.dim = 0, .items = hidden});
  list.cut(block + ".mlp.fc2.weight", {.dim = 1, .items = hidden});
}

void list_attention_pool(const VitConfig& c, Listing& list) {
  list.add("attn_pool.latent", {1, 1, c.width}, {Init::kTruncatedNormal, over_root(c.width)},
           xavier_uniform(1, c.width));
  list.linear("attn_pool.q", c.width, c.width);
  list.linear("attn_pool.kv", c.width, c.width, 2);
  list.linear("attn_pool.proj", c.width, c.width);
  list.norm("attn_pool.norm", c.width);
  list.mlp("attn_pool.mlp", c);
}

void list_head(const VitConfig& c, Listing& list) {
  list.unit("head");
  // Where the last norm comes after the pool it has another name.
  if (!c.norm_after_pool()) list.norm("norm", c.width);
  if (c.pool == Pool::kAttention) list_attention_pool(c, list);
  if (c.norm_after_pool()) list.norm("fc_norm", c.width);
  if (c.head == Head::kTanh) list.layer("pre_logits.fc", c.width, c.width, lecun_normal(c.width));
  list.classifier("head", c);
  if (c.distillation_token) list.classifier("head_dist", c);
}

}  // namespace

std::vector<ParameterSpec> parameters(const VitConfig& config) {
  Listing list(config.initial_values);
  list_stem(config, list);
  for (int64_t i = 0; i < config.depth; ++i) list_block(config, i, list);
  list_head(config, list);
  return list.take();
}

std::vector<BufferSpec> buffers(const VitConfig& /*config*/) { return {}; }

std::vector<std::string> unit_names(const VitConfig& config) {
  std::vector<std::string> names = {"stem"};
  for (int64_t i = 0; i < config.depth; ++i) names.push_back(block_name(i));
  names.push_back("head");
  return names;
}

}  // namespace tessera::arch
