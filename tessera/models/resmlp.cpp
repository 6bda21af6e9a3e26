// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/resmlp.h"

#include <ATen/ops/addcmul.h>

#include "tessera/base/error.h"
#include "tessera/models/layers.h"
#include "tessera/ops/linear.h"

namespace tessera::models {
namespace {

/// What a norm would be elsewhere: alpha * x + beta, a number of each a channel.
struct Affine {
  explicit Affine(const ParameterScope& scope) : alpha(scope.get("alpha")), beta(scope.get("beta")) {}
  at::Tensor operator()(const at::Tensor& x) const { return at::addcmul(beta, alpha, x); }

  at::Tensor alpha, beta;  // [1, 1, width]
};

/// x + ls1 * mix(affine(x)) over the tokens of each channel, then x + ls2 * mlp(affine(x)) over the channels.
class ResMlpBlock {
 public:
  /// `group`: over whom the layers of the channels are cut; null: not.
  ResMlpBlock(const ParameterMap& map, const std::string& name, double drop_path,
              const parallel::TensorGroup* group)
      : ResMlpBlock(ParameterScope(map, name + "."), name, drop_path, group) {}

  at::Tensor forward(const at::Tensor& x, const ForwardContext& context) const {
    const at::Tensor by_channel = norm1_(x).transpose(1, 2).contiguous();  // [batch, width, tokens]
    const at::Tensor mixed = residual1_(x, tokens_.in_block(by_channel, context).transpose(1, 2), context);
    const at::Tensor rows = norm2_(mixed);
    return residual2_(mixed, cut_.is_cut() ? summed(rows, context) : channels(rows, fc2_, context), context);
  }

 private:
  template <typename Rows>
  at::Tensor channels(const Rows& rows, const Linear& fc2, const ForwardContext& context) const {
    return fc2.in_block(fc1_.then_gelu(rows, context), context);
  }
  at::Tensor summed(const at::Tensor& rows, const ForwardContext& context) const {
    return cut_(
        {{}, {}, rows}, {fc2_.bias, {}}, context,
        [&](const ops::LayerNormOutput& all, const parallel::GroupSamples& /*samples*/, ops::Use use) {
          return fc1_.weight.size(0) == 0
                     ? nothing_of(all, all.rows.size(1), {fc1_.weight, fc1_.bias, fc2_.weight})
                     : channels(all, fc2_.without_bias(use), context);
        });
  }

  ResMlpBlock(const ParameterScope& scope, const std::string& name, double drop_path,
              const parallel::TensorGroup* group)
      : cut_(group, name + ".mlp_channels"),
        norm1_(scope.child("norm1")),
        norm2_(scope.child("norm2")),
        tokens_(scope.child("linear_tokens")),
        fc1_(scope.child("mlp_channels").child("fc1")),
        fc2_(scope.child("mlp_channels").child("fc2")),
        residual1_(scope.get("ls1"), drop_path, name + ".drop_path1"),
        residual2_(scope.get("ls2"), drop_path, name + ".drop_path2") {}

  CutBranch cut_;
  Affine norm1_, norm2_;
  Linear tokens_, fc1_, fc2_;
  Residual residual1_, residual2_;
};

/// [batch, channels, image, image] in any float dtype -> [batch, tokens, width].
std::function<at::Tensor(const at::Tensor&, const ForwardContext&)> stem(const ParameterMap& map,
                                                                         const arch::ResMlpConfig& config) {
  const Linear projection(ParameterScope(map, "stem.proj."));
  return [projection, config](const at::Tensor& images, const ForwardContext&) {
    TESSERA_CHECK(images.dim() == 4 && images.size(1) == config.channels &&
                      images.size(2) == config.image_size && images.size(3) == config.image_size,
                  "images of another size: ", images.sizes());
    return ops::linear(unfold_patches(images, config.patch_size, projection.weight.scalar_type()),
                       projection.weight, projection.bias);
  };
}

/// [batch, tokens, width] -> logits [batch, classes] float32.
std::function<at::Tensor(const at::Tensor&, const ForwardContext&)> resmlp_head(const ParameterMap& map) {
  return [norm = Affine(ParameterScope(map, "norm.")), classifier = Linear(ParameterScope(map, "head."))](
             const at::Tensor& x, const ForwardContext& context) {
    const at::Tensor tokens = norm(x), features = tokens.mean(1);
    if (context.observe) {
      context.observe("tokens", tokens);
      context.observe("features", features);
    }
    return in_float32(classifier(features));
  };
}

std::vector<arch::ParameterSpec> checked_parameters(const arch::ResMlpConfig& config) {
  arch::check(config);
  return arch::parameters(config);
}

}  // namespace

ResMlp::ResMlp(const arch::ResMlpConfig& config, const parallel::TensorGroups* groups)
    : SegmentedModel("ResMlp", checked_parameters(config), groups), config_(config) {
  const ParameterMap map = register_all();
  std::vector<Segment> segments;
  segments.push_back({"stem", {}, stem(map, config)});
  for (int64_t i = 0; i < config.depth; ++i) {
    const std::string name = concat("blocks.", i);
    const ResMlpBlock block(map, name, config.drop_path, group_of(name));
    segments.push_back({name, {}, [block](const at::Tensor& x, const ForwardContext& context) {
                          return block.forward(x, context);
                        }});
  }
  segments.push_back({"head", {}, resmlp_head(map)});
  set_segments(std::move(segments), arch::buffers(config), map);
}

ResMlp::~ResMlp() = default;

}  // namespace tessera::models
