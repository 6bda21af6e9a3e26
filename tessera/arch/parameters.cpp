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
//   linear layers      weight Xavier's uniform, +-sqrt(6/(in + out)): q, k and v each a layer of its own,
//   though
//                      they lie in one tensor; bias 0, of the MLPs' layers normal with std 1e-6
//   patch_embed.proj, pre_logits.fc, head (without head_zero_init)   weight LeCun's normal (variance 1/in
//   after
//                      the cut at two standard deviations), bias 0 (head: head_bias)
//   pos_embed          normal, std 1/sqrt(width)
//   cls_token          0
//   attn_pool.latent   Xavier's uniform of (1, width)
// What big_vision does not have (registers, a distillation token, LayerScale) keeps timm's.
#include <cmath>

#include "tessera/arch/vit.h"

namespace tessera::arch {
namespace {

constexpr double kWeightStd = 0.02, kTokenStd = 1e-6, kMlpBiasStd = 1e-6;
/// What is left of a normal's standard deviation when values beyond two of them are drawn again.
constexpr double kStdWithinTwo = 0.87962566103423978;

double xavier_bound(int64_t in, int64_t out) { return std::sqrt(6.0 / static_cast<double>(in + out)); }

std::string block_name(int64_t index) { return "blocks." + std::to_string(index); }

/// Collects specs of one unit after another.
class Listing {
 public:
  explicit Listing(const VitConfig& c) : big_vision_(c.initial_values == InitialValues::kBigVision) {}
  bool big_vision() const { return big_vision_; }
  void unit(std::string name) { unit_ = std::move(name); }

  ParameterSpec& add(std::string name, std::vector<int64_t> shape, Init init, double value = 0.0) {
    specs_.push_back({std::move(name), std::move(shape), init, value, unit_, false, false});
    return specs_.back();
  }
  /// `parts` layers of (out, in) below each other in one tensor.
  void linear(const std::string& name, int64_t in, int64_t out, int64_t parts = 1) {
    auto& weight = add(name + ".weight", {parts * out, in}, Init::kTruncatedNormal, kWeightStd);
    weight.decay = true;
    if (big_vision_) set(weight, Init::kUniform, xavier_bound(in, out));
    add(name + ".bias", {parts * out}, Init::kZero);
  }
  void mlp(const std::string& name, const VitConfig& c) {
    linear(name + ".fc1", c.width, c.mlp_width);
    if (big_vision_) set(specs_.back(), Init::kNormal, kMlpBiasStd);
    linear(name + ".fc2", c.mlp_width, c.width);
    if (big_vision_) set(specs_.back(), Init::kNormal, kMlpBiasStd);
  }
  void lecun_normal(ParameterSpec& weight, int64_t in) {
    set(weight, Init::kNormalWithinTwo, 1.0 / std::sqrt(static_cast<double>(in)) / kStdWithinTwo);
  }
  /// One whose layer Flax gives its default weights.
  void dense(const std::string& name, int64_t in, int64_t out) {
    linear(name, in, out);
    if (big_vision_) lecun_normal(specs_[specs_.size() - 2], in);
  }
  void classifier(const std::string& name, const VitConfig& c) {
    dense(name, c.width, c.classes);
    ParameterSpec &weight = specs_[specs_.size() - 2], &bias = specs_.back();
    if (c.head_zero_init) set(weight, Init::kZero, 0.0);
    if (c.head_bias != 0) set(bias, Init::kConstant, c.head_bias);
  }
  void norm(const std::string& name, int64_t width) {
    add(name + ".weight", {width}, Init::kOne);
    add(name + ".bias", {width}, Init::kZero);
  }
  static void set(ParameterSpec& spec, Init init, double value) {
    spec.init = init;
    spec.init_value = value;
  }
  std::vector<ParameterSpec> take() { return std::move(specs_); }

 private:
  bool big_vision_;
  std::string unit_;
  std::vector<ParameterSpec> specs_;
};

void list_stem(const VitConfig& c, Listing& list) {
  list.unit("stem");
  if (c.class_token) {
    auto& token = list.add("cls_token", {1, 1, c.width}, Init::kTruncatedNormal, kTokenStd);
    if (list.big_vision()) Listing::set(token, Init::kZero, 0.0);
  }
  if (c.registers > 0) list.add("reg_token", {1, c.registers, c.width}, Init::kTruncatedNormal, kTokenStd);
  // One row for every token: class token, registers, patches.
  auto& position = list.add("pos_embed", {1, c.tokens(), c.width}, Init::kTruncatedNormal, kWeightStd);
  if (list.big_vision()) Listing::set(position, Init::kNormal, 1.0 / std::sqrt(static_cast<double>(c.width)));
  if (c.position_embedding == PositionEmbedding::kSinCos2d) {
    position.buffer = true;
    Listing::set(position, Init::kZero, 0.0);
  }
  if (c.distillation_token) {
    list.add("dist_token", {1, 1, c.width}, Init::kTruncatedNormal, kWeightStd);
  }
  const int64_t inputs = c.channels * c.patch_size * c.patch_size;
  const double bound = 1.0 / std::sqrt(static_cast<double>(inputs));
  auto& patches = list.add("patch_embed.proj.weight", {c.width, c.channels, c.patch_size, c.patch_size},
                           Init::kUniform, bound);
  patches.decay = true;
  if (list.big_vision()) list.lecun_normal(patches, inputs);
  auto& bias = list.add("patch_embed.proj.bias", {c.width}, Init::kUniform, bound);
  if (list.big_vision()) Listing::set(bias, Init::kZero, 0.0);
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
  if (c.layer_scale > 0) list.add(block + ".ls1.gamma", {c.width}, Init::kConstant, c.layer_scale);
  list.norm(block + ".norm2", c.width);
  list.mlp(block + ".mlp", c);
  if (c.layer_scale > 0) list.add(block + ".ls2.gamma", {c.width}, Init::kConstant, c.layer_scale);
}

void list_attention_pool(const VitConfig& c, Listing& list) {
  auto& latent = list.add("attn_pool.latent", {1, 1, c.width}, Init::kTruncatedNormal,
                          1.0 / std::sqrt(static_cast<double>(c.width)));
  if (list.big_vision()) Listing::set(latent, Init::kUniform, xavier_bound(1, c.width));
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
  if (c.head == Head::kTanh) list.dense("pre_logits.fc", c.width, c.width);
  list.classifier("head", c);
  if (c.distillation_token) list.classifier("head_dist", c);
}

}  // namespace

std::vector<ParameterSpec> parameters(const VitConfig& config) {
  Listing list(config);
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
