// SPDX-License-Identifier: Apache-2.0
#include "tessera/weights/finetune.h"

#include <algorithm>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/names.h"
#include "tessera/weights/channels.h"
#include "tessera/weights/mapping.h"
#include "tessera/weights/patches.h"

namespace tessera::weights {
namespace {

using checkpoint::names::kParameter;

/// The layers that answer, one row a class; what they are called in each family.
bool is_classifier(const std::string& name) {
  return name.starts_with("head.") || name.starts_with("head_dist.") || name.starts_with("fc.");
}

/// What images enter by, [out, channels, side, side]; in each family.
bool is_first_layer(const std::string& name) {
  return name == "patch_embed.proj.weight" || name == "stem.proj.weight" || name == "conv1.weight";
}

const char* text_of(bool value) { return value ? "true" : "false"; }
template <typename Value>
const Value& text_of(const Value& value) {
  return value;
}

template <typename Value>
void alike(const char* key, const Value& theirs, const Value& ours) {
  if (theirs == ours) return;
  user_error(
      {.where = "weights.finetune",
       .problem = concat("the model's ", key, " is ", text_of(ours), ", but that of the weights is ",
                         text_of(theirs)),
       .expected = "a model that differs only in image_size, patch_size, channels, classes, pool and head"});
}

void check_alike(const arch::VitConfig& from, const arch::VitConfig& to) {
  alike("width", from.width, to.width);
  alike("depth", from.depth, to.depth);
  alike("heads", from.heads, to.heads);
  alike("mlp_width", from.mlp_width, to.mlp_width);
  alike("class_token", from.class_token, to.class_token);
  alike("distillation_token", from.distillation_token, to.distillation_token);
  alike("registers", from.registers, to.registers);
  alike("qk_norm", from.qk_norm, to.qk_norm);
  alike("layer_scale (whether there is one)", from.layer_scale > 0, to.layer_scale > 0);
}

void check_alike(const arch::ModelConfig& from, const arch::ModelConfig& to) {
  alike("family", from.family(), to.family());
  if (from.family() == arch::VitConfig::kFamily) {
    check_alike(from.as<arch::VitConfig>(), to.as<arch::VitConfig>());
  }
}

}  // namespace

HeadStart head_start_of(const std::string& name) {
  const std::vector<std::string> names = {"auto", "keep", "zero", "fresh"};
  for (size_t i = 0; i < names.size(); ++i) {
    if (name == names[i]) return static_cast<HeadStart>(i);
  }
  const std::string near = nearest(name, names);
  user_error({.where = "weights.finetune",
              .problem = concat("the start of the head is \"", escape(name), '"'),
              .expected = concat("one of ", join(names, ", ")),
              .hint = near.empty() ? "" : concat("did you mean \"", near, "\"?")});
}

FinetunedSource::FinetunedSource(std::shared_ptr<checkpoint::TensorSource> source,
                                 const arch::ModelConfig& from, const arch::ModelConfig& to,
                                 const FinetuneOptions& options)
    : source_(std::move(source)) {
  check_alike(from, to);
  if (options.head == HeadStart::kKeep && from.classes() != to.classes()) {
    user_error({.where = "weights.finetune",
                .problem = concat("the model has ", to.classes(), " classes, but the head that is kept has ",
                                  from.classes()),
                .expected = "as many classes",
                .hint = "choose another start of the head"});
  }
  const bool is_vit = to.family() == arch::VitConfig::kFamily;
  if (is_vit) note_vit_changes(from.as<arch::VitConfig>(), to.as<arch::VitConfig>());
  for (const auto& spec : arch::parameters(to)) {
    if (spec.buffer) continue;
    tensors_.push_back({std::string(kParameter) + spec.name, "F32", spec.shape});
    origins_.push_back(origin_of(spec, from, to, options));
  }
  if (!missing_.empty()) {
    user_error(
        {.where = "weights.finetune",
         .problem = concat(
             "the weights have no ", missing_.front(),
             missing_.size() > 1 ? concat(" (and ", missing_.size() - 1, " more tensors are missing)") : ""),
         .expected = "weights of the whole model"});
  }
  size_t ignored = 0;
  const bool one_layer = is_vit && to.as<arch::VitConfig>().head == arch::Head::kLinear;
  if (one_layer && find("pre_logits.fc.weight", ignored) != nullptr)
    changes_.emplace_back("pre_logits: dropped");
}

void FinetunedSource::note_vit_changes(const arch::VitConfig& from, const arch::VitConfig& to) {
  if (to.norm_epsilon != from.norm_epsilon) {
    changes_.push_back(
        concat("norm_epsilon: ", from.norm_epsilon, " in the weights' model, ", to.norm_epsilon, " here"));
  }
  using arch::PositionEmbedding;
  if (to.position_embedding == PositionEmbedding::kSinCos2d &&
      from.position_embedding == PositionEmbedding::kLearned) {
    changes_.emplace_back("pos_embed: dropped, the model computes its positions");
  }
}

const checkpoint::Manifest::Tensor* FinetunedSource::find(const std::string& name, size_t& number) const {
  const auto& all = source_->tensors();
  const auto at = std::find_if(all.begin(), all.end(), [&](const auto& tensor) {
    return tensor.name.size() == kParameter.size() + name.size() && tensor.name.ends_with(name) &&
           tensor.name.starts_with(kParameter);
  });
  number = static_cast<size_t>(at - all.begin());
  return at == all.end() ? nullptr : &*at;
}

FinetunedSource::Origin FinetunedSource::head_origin(const arch::ParameterSpec& spec, bool kept,
                                                     const FinetuneOptions& options) {
  Origin origin;
  const auto* tensor = find(spec.name, origin.source);
  if (kept && tensor != nullptr && tensor->shape == spec.shape) return origin;
  const int64_t classes = tensor == nullptr ? 0 : tensor->shape.front();
  origin.kind = options.head == HeadStart::kFresh ? Kind::kFresh : Kind::kConstant;
  origin.value = spec.name.ends_with(".bias") ? options.head_bias : 0.0F;
  changes_.push_back(concat(spec.name, ": ", classes, " -> ", spec.shape.front(), " classes, ",
                            origin.kind == Kind::kFresh ? "fresh" : concat("all ", origin.value)));
  return origin;
}

FinetunedSource::Origin FinetunedSource::origin_of(const arch::ParameterSpec& spec,
                                                   const arch::ModelConfig& from, const arch::ModelConfig& to,
                                                   const FinetuneOptions& options) {
  if (is_classifier(spec.name)) {
    const bool kept = options.head == HeadStart::kKeep || options.head == HeadStart::kAuto;
    return head_origin(spec, kept, options);
  }
  Origin origin;
  const auto* tensor = find(spec.name, origin.source);
  if (tensor == nullptr) {
    const bool norm = spec.name.starts_with("fc_norm.") || spec.name.starts_with("norm.");
    if (!norm) missing_.push_back(concat(spec.name, ' ', checkpoint::shape_text(spec.shape)));
    origin.kind = Kind::kConstant;
    origin.value = spec.name.ends_with("weight") ? 1.0F : 0.0F;
    changes_.push_back(concat(spec.name, ": all ", origin.value, ", the pool is another"));
    return origin;
  }
  if (spec.name == "pos_embed" && tensor->shape != spec.shape) {
    const auto &theirs = from.as<arch::VitConfig>(), &ours = to.as<arch::VitConfig>();
    origin.kind = Kind::kComputed;
    origin.computed = resampled(origin.source, theirs, ours, options.positions);
    changes_.push_back(concat("pos_embed: ", theirs.grid(), " x ", theirs.grid(), " -> ", ours.grid(), " x ",
                              ours.grid(), " patches, ", to_string(options.positions)));
    return origin;
  }
  if (is_first_layer(spec.name) && tensor->shape != spec.shape &&
      tensor->shape.front() == spec.shape.front()) {
    origin.kind = Kind::kComputed;
    origin.computed = first_layer(origin.source, spec);
    return origin;
  }
  if (tensor->shape != spec.shape) {
    user_error({.where = "weights.finetune",
                .problem = concat(spec.name, " of the weights is ", checkpoint::shape_text(tensor->shape)),
                .expected = checkpoint::shape_text(spec.shape),
                .hint = "use weights of a model of the same sizes"});
  }
  TESSERA_CHECK(tensor->dtype == "F32", spec.name);
  return origin;
}

std::vector<float> FinetunedSource::resampled(size_t source, const arch::VitConfig& from,
                                              const arch::VitConfig& to, Resampling how) {
  std::vector<float> all(static_cast<size_t>(from.tokens() * from.width));
  source_->read(source, 0, std::as_writable_bytes(std::span(all)));
  const auto prefix = static_cast<size_t>(from.prefix_tokens() * from.width);
  std::vector<float> result(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(prefix));
  const auto rows = resample_positions(std::span<const float>(all).subspan(prefix), from.grid(), to.grid(),
                                       from.width, how);
  result.insert(result.end(), rows.begin(), rows.end());
  return result;
}

std::vector<float> FinetunedSource::first_layer(size_t source, const arch::ParameterSpec& spec) {
  const auto& theirs = source_->tensors()[source].shape;
  const auto& ours = spec.shape;
  std::vector<float> kernels(static_cast<size_t>(checkpoint::count_of(theirs)));
  source_->read(source, 0, std::as_writable_bytes(std::span(kernels)));
  if (theirs[2] != ours[2]) {
    kernels = resample_patches(kernels, theirs[2], ours[2]);
    changes_.push_back(concat(spec.name, ": ", theirs[2], " x ", theirs[2], " -> ", ours[2], " x ", ours[2],
                              " pixels, pseudo-inverse of the bicubic resize"));
  }
  if (theirs[1] != ours[1]) {
    kernels = adapt_channels(kernels, theirs[1], ours[1], ours[2] * ours[3]);
    changes_.push_back(concat(spec.name, ": ", describe_channels(theirs[1], ours[1])));
  }
  return kernels;
}

void FinetunedSource::read(size_t tensor, int64_t begin, std::span<std::byte> out) {
  const Origin& origin = origins_.at(tensor);
  if (origin.kind == Kind::kSame) {
    source_->read(origin.source, begin, out);
    return;
  }
  TESSERA_CHECK(origin.kind != Kind::kFresh, tensors_[tensor].name);
  const auto first = static_cast<size_t>(begin);
  const size_t count = out.size() / sizeof(float);
  if (count == 0) return;
  TESSERA_CHECK(
      begin >= 0 && static_cast<int64_t>(count) <= checkpoint::count_of(tensors_[tensor].shape) - begin,
      tensors_[tensor].name);
  const std::vector<float> constant(origin.kind == Kind::kConstant ? count : 0, origin.value);
  std::memcpy(out.data(), origin.kind == Kind::kConstant ? constant.data() : origin.computed.data() + first,
              out.size());
}

}  // namespace tessera::weights
