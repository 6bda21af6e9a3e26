// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/sync_batch_norm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

namespace tessera::shard {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kOverSamplesAndPlace[] = {0, 2, 3};

/// [channels] -> a shape that spreads over [samples, channels, height, width].
at::Tensor spread(const at::Tensor& channels) { return channels.view({1, -1, 1, 1}); }

at::Tensor channel_sum(const at::Tensor& x) { return x.sum(kOverSamplesAndPlace, false, at::kDouble); }

/// Moments over all ranks: mean and (biased) variance [channels] float64, and how many values each has.
struct Moments {
  at::Tensor mean, variance;
  double count = 0;
};

Moments moments_of(const at::Tensor& input, mesh::Group& group) {
  const int64_t channels = input.size(1);
  const auto mine = static_cast<double>(input.numel() / channels);
  // Centred on this rank's mean first: the square of a large mean would drown the variance.
  const at::Tensor sums = channel_sum(input), mean = sums / std::max(mine, 1.0);
  const at::Tensor squares = channel_sum((input - spread(mean.to(input.scalar_type()))).square());
  at::Tensor all = at::cat({sums, at::full({1}, mine, sums.options())});
  group.all_reduce(all, "batch norm");
  Moments result;
  result.count = all[channels].item<double>();
  const double count = std::max(result.count, 1.0);  // no rank has a value of an empty micro-batch
  result.mean = all.narrow(0, 0, channels) / count;
  at::Tensor deviations = squares + mine * (mean - result.mean).square();
  group.all_reduce(deviations, "batch norm");
  result.variance = deviations / count;
  return result;
}

class SyncNorm : public torch::autograd::Function<SyncNorm> {
 public:
  // (More than 5 parameters: autograd's interface takes tensors one by one.)
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& bias, const at::Tensor& mean, const at::Tensor& scale,
                            double count, mesh::Group* group) {
    const at::Tensor normalised = (input.to(at::kFloat) - spread(mean)) * spread(scale);
    context->save_for_backward({normalised, weight, scale});
    context->saved_data["count"] = count;
    context->saved_data["group"] = reinterpret_cast<int64_t>(group);
    context->saved_data["dtype"] = input.scalar_type();
    return (normalised * spread(weight.to(at::kFloat)) + spread(bias.to(at::kFloat))).to(input.scalar_type());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &normalised = saved[0], &weight = saved[1], &scale = saved[2];
    const at::Tensor gradient = gradients[0].to(at::kFloat);
    const at::Tensor bias_gradient = channel_sum(gradient),
                     weight_gradient = channel_sum(gradient * normalised);
    at::Tensor all = at::cat({bias_gradient, weight_gradient});
    reinterpret_cast<mesh::Group*>(context->saved_data["group"].toInt())->all_reduce(all, "batch norm");
    const at::Tensor means = (all / std::max(context->saved_data["count"].toDouble(), 1.0)).to(at::kFloat);
    const int64_t channels = weight.numel();
    const at::Tensor centred = gradient - spread(means.narrow(0, 0, channels)) -
                               normalised * spread(means.narrow(0, channels, channels));
    const at::Tensor input_gradient = centred * spread(scale * weight.to(at::kFloat));
    const at::Tensor none;
    return {input_gradient.to(context->saved_data["dtype"].toScalarType()),
            weight_gradient.to(weight.scalar_type()),
            bias_gradient.to(weight.scalar_type()),
            none,
            none,
            none,
            none};
  }
};

}  // namespace

/// This norm for a batch that no other rank has a part of.
ops::BatchNorm BatchNorm::counted(const at::Tensor& input, bool training) const {
  if (training && input.numel() > 0) num_batches_tracked.add_(1);
  return {weight, bias, running_mean, running_var, epsilon, momentum};
}

ops::BatchNormOutput BatchNorm::normed(const at::Tensor& input, bool training, bool relu) const {
  if (alone(training)) return ops::normed_images(input, counted(input, training), training, relu);
  ops::BatchNormOutput kept;
  kept.images = forward(input, training, {relu, {}});
  return kept;
}

at::Tensor BatchNorm::forward(const at::Tensor& input, bool training, const ops::AfterNorm& after) const {
  if (alone(training)) return ops::batch_norm(input, counted(input, training), training, after);
  Moments moments;
  {
    const at::NoGradGuard no_grad;
    moments = moments_of(input, *group);
    const double unbiased = moments.count / std::max(moments.count - 1, 1.0);
    if (moments.count > 0) {
      num_batches_tracked.add_(1);
      running_mean.lerp_(moments.mean.to(running_mean.scalar_type()), momentum);
      running_var.lerp_((moments.variance * unbiased).to(running_var.scalar_type()), momentum);
    }
  }
  return ops::after_norm(
      SyncNorm::apply(input, weight, bias, moments.mean.to(at::kFloat),
                      (moments.variance + epsilon).rsqrt().to(at::kFloat), moments.count, group),
      after);
}

SyncBatchNorm2dImpl::SyncBatchNorm2dImpl(int64_t channels, mesh::Group* group, double eps, double momentum)
    : group_(group), eps_(eps), momentum_(momentum) {
  weight = register_parameter("weight", at::ones({channels}));
  bias = register_parameter("bias", at::zeros({channels}));
  running_mean = register_buffer("running_mean", at::zeros({channels}));
  running_var = register_buffer("running_var", at::ones({channels}));
  num_batches_tracked = register_buffer("num_batches_tracked", at::zeros({}, at::kLong));
}

at::Tensor SyncBatchNorm2dImpl::forward(const at::Tensor& input) {
  return BatchNorm{weight, bias, running_mean, running_var, num_batches_tracked, eps_, momentum_, group_}
      .forward(input, is_training());
}

}  // namespace tessera::shard
