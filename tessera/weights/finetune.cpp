#include "tessera/weights/finetune.h"

#include <algorithm>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/names.h"
#include "tessera/weights/mapping.h"

namespace tessera::weights {
namespace {

using checkpoint::names::kParameter;

bool is_head(const std::string& name) { return name == "head.weight" || name == "head.bias"; }

void check_alike(const arch::VitConfig& from, const arch::VitConfig& to) {
  const auto alike = [](const char* key, auto theirs, auto ours) {
    if (theirs == ours) return;
    user_error("weights.finetune", "a model that differs in image_size, classes, pool and head alone: its ",
               key, " is ", theirs, ", that of the weights ", ours);
  };
  alike("width", to.width, from.width);
  alike("depth", to.depth, from.depth);
  alike("heads", to.heads, from.heads);
  alike("mlp_width", to.mlp_width, from.mlp_width);
  alike("patch_size", to.patch_size, from.patch_size);
  alike("channels", to.channels, from.channels);
  alike("class_token", to.class_token, from.class_token);
  alike("registers", to.registers, from.registers);
  alike("qk_norm", to.qk_norm, from.qk_norm);
  alike("layer_scale (whether there is one)", to.layer_scale > 0, from.layer_scale > 0);
}

}  // namespace

HeadStart head_start_of(const std::string& name) {
  const std::vector<std::string> names = {"auto", "keep", "zero", "fresh"};
  for (size_t i = 0; i < names.size(); ++i) {
    if (name == names[i]) return static_cast<HeadStart>(i);
  }
  const std::string near = nearest(name, names);
  user_error("weights.finetune", "one of ", join(names, ", "), ": found \"", escape(name), '"',
             near.empty() ? "" : " (did you mean \"" + near + "\"?)");
}

FinetunedSource::FinetunedSource(std::shared_ptr<checkpoint::TensorSource> source,
                                 const arch::VitConfig& from, const arch::VitConfig& to,
                                 const FinetuneOptions& options)
    : source_(std::move(source)) {
  check_alike(from, to);
  if (options.head == HeadStart::kKeep && from.classes != to.classes) {
    user_error("weights.finetune", "as many classes as the head that is kept, ", from.classes, ": found ",
               to.classes, " (choose another start of the head)");
  }
  if (to.norm_epsilon != from.norm_epsilon) {
    changes_.push_back(
        concat("norm_epsilon: ", from.norm_epsilon, " in the weights' model, ", to.norm_epsilon, " here"));
  }
  for (const auto& spec : arch::parameters(to)) {
    tensors_.push_back({std::string(kParameter) + spec.name, "F32", spec.shape});
    origins_.push_back(origin_of(spec, from, to, options));
  }
  if (!missing_.empty()) {
    user_error("weights.finetune", "weights for the whole model: there are none for ", missing_.front(),
               missing_.size() > 1 ? concat(" and ", missing_.size() - 1, " more tensors") : "");
  }
  size_t ignored = 0;
  if (find("pre_logits.fc.weight", ignored) != nullptr && to.head == arch::Head::kLinear)
    changes_.emplace_back("pre_logits: dropped");
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

FinetunedSource::Origin FinetunedSource::origin_of(const arch::ParameterSpec& spec,
                                                   const arch::VitConfig& from, const arch::VitConfig& to,
                                                   const FinetuneOptions& options) {
  Origin origin;
  const auto* tensor = find(spec.name, origin.source);
  if (is_head(spec.name)) {
    const bool kept = options.head == HeadStart::kKeep || options.head == HeadStart::kAuto;
    if (kept && tensor != nullptr && tensor->shape == spec.shape) return origin;
    const bool bias = spec.name == "head.bias";
    origin.kind = options.head == HeadStart::kFresh ? Kind::kFresh : Kind::kConstant;
    origin.value = bias ? options.head_bias : 0.0F;
    changes_.push_back(concat(spec.name, ": ", from.classes, " -> ", to.classes, " classes, ",
                              origin.kind == Kind::kFresh ? "fresh" : concat("all ", origin.value)));
    return origin;
  }
  if (tensor == nullptr) {
    const bool norm = spec.name.starts_with("fc_norm.") || spec.name.starts_with("norm.");
    if (!norm) missing_.push_back(concat(spec.name, ' ', checkpoint::shape_text(spec.shape)));
    origin.kind = Kind::kConstant;
    origin.value = spec.name.ends_with("weight") ? 1.0F : 0.0F;
    changes_.push_back(concat(spec.name, ": all ", origin.value, ", the pool is another"));
    return origin;
  }
  if (spec.name == "pos_embed" && from.grid() != to.grid()) {
    origin.kind = Kind::kPositions;
    resample(origin.source, from, to, options.positions);
    changes_.push_back(concat("pos_embed: ", from.grid(), " x ", from.grid(), " -> ", to.grid(), " x ",
                              to.grid(), " patches, ", to_string(options.positions)));
    return origin;
  }
  TESSERA_CHECK(tensor->shape == spec.shape && tensor->dtype == "F32", spec.name);
  return origin;
}

void FinetunedSource::resample(size_t source, const arch::VitConfig& from, const arch::VitConfig& to,
                               Resampling how) {
  std::vector<float> all(static_cast<size_t>(from.tokens() * from.width));
  source_->read(source, 0, std::as_writable_bytes(std::span(all)));
  const auto prefix = static_cast<size_t>(from.prefix_tokens() * from.width);
  positions_.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(prefix));
  const auto rows = resample_positions(std::span<const float>(all).subspan(prefix), from.grid(), to.grid(),
                                       from.width, how);
  positions_.insert(positions_.end(), rows.begin(), rows.end());
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
  std::memcpy(out.data(), origin.kind == Kind::kConstant ? constant.data() : positions_.data() + first,
              out.size());
}

}  // namespace tessera::weights
