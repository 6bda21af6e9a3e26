// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/resnet.h"

#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/base/error.h"
#include "tessera/models/parameter_tree.h"
#include "tessera/ops/convolution.h"
#include "tessera/ops/linear.h"
#include "tessera/shard/sync_batch_norm.h"

namespace tessera::models {
namespace {

/// What all norms of a model share.
struct NormOptions {
  double epsilon, momentum;
  mesh::Group* group;
};

shard::BatchNorm batch_norm(const ParameterScope& scope, const NormOptions& options) {
  return {scope.get("weight"),
          scope.get("bias"),
          scope.get("running_mean"),
          scope.get("running_var"),
          scope.get("num_batches_tracked"),
          options.epsilon,
          options.momentum,
          options.group};
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The places that a stride leaves, channels last. (Two slices would make the gradient twice, and with
/// another order of memory than its sum with others.)
class EveryOther : public torch::autograd::Function<EveryOther> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, int64_t stride) {
    context->saved_data["sizes"] = x.sizes();
    context->saved_data["stride"] = stride;
    return places(x, stride).contiguous(at::MemoryFormat::ChannelsLast);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::Tensor whole = at::empty(context->saved_data["sizes"].toIntVector(), gradients[0].options(),
                                       at::MemoryFormat::ChannelsLast)
                                 .zero_();
    places(whole, context->saved_data["stride"].toInt()).copy_(gradients[0]);
    return {whole, at::Tensor()};
  }

 private:
  static at::Tensor places(const at::Tensor& x, int64_t stride) {
    return x.slice(2, 0, x.size(2), stride).slice(3, 0, x.size(3), stride);
  }
};

at::Tensor no_bias(const at::Tensor& weight) {
  return at::zeros({weight.size(0)}, weight.options().requires_grad(false));
}

/// x [batch, in, height, width], channels last, by weight [out, in, kernel, kernel]. On a CPU a kernel of one
/// place is a product over channels, which lie side by side.
at::Tensor convolve(const at::Tensor& x, const at::Tensor& weight, int64_t stride) {
  if (weight.size(2) > 1 || !x.is_cpu()) return at::conv2d(x, weight, {}, stride, weight.size(2) / 2);
  const at::Tensor places = stride == 1 ? x : EveryOther::apply(x, stride);
  return ops::linear(places.permute({0, 2, 3, 1}), weight, no_bias(weight)).permute({0, 3, 1, 2});
}

at::Tensor convolve(const ops::BatchNormOutput& x, const at::Tensor& weight, int64_t stride) {
  if (weight.size(2) > 1 || stride > 1 || !x.images.is_cpu()) return ops::convolution(x, weight, stride);
  return ops::linear(x, weight, no_bias(weight)).permute({0, 3, 1, 2});
}

/// A convolution without bias, the norm behind it and what follows that.
class ConvNorm {
 public:
  ConvNorm(const ParameterScope& convolution, const ParameterScope& norm, int64_t stride,
           const NormOptions& options)
      : weight_(convolution.get("weight")), stride_(stride), norm_(batch_norm(norm, options)) {}

  /// `x`: images, or ops::BatchNormOutput.
  at::Tensor operator()(const auto& x, const ForwardContext& context, const ops::AfterNorm& after) const {
    return norm_.forward(convolve(x, weight_, stride_), context.training, after);
  }
  /// For a convolution to come, with a ReLU.
  ops::BatchNormOutput normed(const auto& x, const ForwardContext& context) const {
    return norm_.normed(convolve(x, weight_, stride_), context.training, /*relu=*/true);
  }

 private:
  at::Tensor weight_;  // [out, in, kernel, kernel]
  int64_t stride_;
  shard::BatchNorm norm_;
};

/// Two or three convolutions, a ReLU before each but the first, and the way past them.
class ResNetBlock {
 public:
  ResNetBlock(const ParameterMap& map, const arch::ResNetBlock& block, bool bottleneck,
              const NormOptions& options) {
    const ParameterScope scope(map, block.name + ".");
    const int count = bottleneck ? 3 : 2, strided = bottleneck ? 1 : 0;
    for (int i = 0; i < count; ++i) {
      const std::string number = std::to_string(i + 1);
      branch_.emplace_back(scope.child("conv" + number), scope.child("bn" + number),
                           i == strided ? block.stride : 1, options);
    }
    if (!block.projects()) return;
    const ParameterScope past = scope.child("downsample");
    past_.emplace_back(past.child("0"), past.child("1"), block.stride, options);
  }

  at::Tensor forward(const at::Tensor& x, const ForwardContext& context) const {
    ops::BatchNormOutput h = branch_.front().normed(x, context);
    for (size_t i = 1; i + 1 < branch_.size(); ++i) h = branch_[i].normed(h, context);
    return branch_.back()(h, context, {true, past_.empty() ? x : past_.front()(x, context, {})});
  }

 private:
  std::vector<ConvNorm> branch_, past_;
};

/// [batch, channels, image, image] in any float dtype -> [batch, base_width, image / 4, image / 4].
std::function<at::Tensor(const at::Tensor&, const ForwardContext&)> stem(const ParameterMap& map,
                                                                         const arch::ResNetConfig& config,
                                                                         const NormOptions& options) {
  const at::Tensor weight = map.at("conv1.weight");
  const ConvNorm convolution(ParameterScope(map, "conv1."), ParameterScope(map, "bn1."), 2, options);
  return [=](const at::Tensor& images, const ForwardContext& context) {
    TESSERA_CHECK(images.dim() == 4 && images.size(1) == config.channels &&
                      images.size(2) == config.image_size && images.size(3) == config.image_size,
                  "images of another size: ", images.sizes());
    // Channels last: the convolutions of oneDNN and of cuDNN then need no other order of what they read and
    // write, and everything after them keeps it.
    const at::Tensor input = images.to(weight.scalar_type()).contiguous(at::MemoryFormat::ChannelsLast);
    return at::max_pool2d(convolution(input, context, {true, {}}), 3, 2, 1);
  };
}

/// [batch, features, size, size] -> logits [batch, classes] float32.
std::function<at::Tensor(const at::Tensor&, const ForwardContext&)> resnet_head(const ParameterMap& map) {
  return [weight = map.at("fc.weight"), bias = map.at("fc.bias")](const at::Tensor& x,
                                                                  const ForwardContext& context) {
    const at::Tensor features = x.mean({2, 3});
    if (context.observe) context.observe("features", features);
    return at::linear(features, weight, bias).to(at::kFloat);
  };
}

std::vector<arch::ParameterSpec> checked_parameters(const arch::ResNetConfig& config) {
  arch::check(config);
  return arch::parameters(config);
}

}  // namespace

ResNet::ResNet(const arch::ResNetConfig& config, mesh::Group* statistics)
    : SegmentedModel("ResNet", checked_parameters(config)), config_(config) {
  ParameterMap map = register_all();
  register_buffers(*this, arch::buffers(config), map);
  const NormOptions options{config.batch_norm_epsilon, config.batch_norm_momentum, statistics};
  std::vector<Segment> segments;
  segments.push_back({"stem", {}, stem(map, config, options)});
  for (const arch::ResNetBlock& description : arch::blocks(config)) {
    const ResNetBlock block(map, description, config.bottleneck, options);
    segments.push_back({description.name, {}, [block](const at::Tensor& x, const ForwardContext& context) {
                          return block.forward(x, context);
                        }});
  }
  segments.push_back({"head", {}, resnet_head(map)});
  set_segments(std::move(segments), arch::buffers(config), map);
}

ResNet::~ResNet() = default;

}  // namespace tessera::models
