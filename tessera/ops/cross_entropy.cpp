// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cross_entropy.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "tessera/device/kernels.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

device::CrossEntropy described(const at::Tensor& logits, const Labels& labels, double smoothing) {
  const bool two = labels.second.defined();
  return {.rows = logits.size(0),
          .classes = logits.size(1),
          .logits = logits.const_data_ptr<float>(),
          .labels = labels.first.const_data_ptr<int64_t>(),
          .second = two ? labels.second.const_data_ptr<int64_t>() : nullptr,
          .share = two ? labels.share.const_data_ptr<float>() : nullptr,
          .smoothing = static_cast<float>(smoothing)};
}

/// By the device's kernels. Requires: device::kernels_for, fp32.
class FusedCrossEntropy : public torch::autograd::Function<FusedCrossEntropy> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits_given, const at::Tensor& first,
                            const std::optional<at::Tensor>& second, const std::optional<at::Tensor>& share,
                            double smoothing) {
    RECORD_USER_SCOPE("tessera::cross_entropy");
    const at::Tensor logits = logits_given.contiguous();
    const device::DeviceKernels& kernels = *device::kernels_for(logits);
    const at::Tensor losses = at::empty({logits.size(0)}, logits.options()),
                     log_sums = at::empty_like(losses);
    const Labels labels{first, second.value_or(at::Tensor()), share.value_or(at::Tensor())};
    kernels.cross_entropy({.of = described(logits, labels, smoothing),
                           .losses = losses.mutable_data_ptr<float>(),
                           .log_sums = log_sums.mutable_data_ptr<float>()},
                          device::KernelStream(kernels, logits));
    ctx->save_for_backward({logits, labels.first, labels.second, labels.share, log_sums});
    ctx->saved_data["smoothing"] = smoothing;
    return losses.sum();
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    RECORD_USER_SCOPE("tessera::cross_entropy_backward");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &logits = saved[0], &log_sums = saved[4];
    const device::DeviceKernels& kernels = *device::kernels_for(logits);
    const double smoothing = ctx->saved_data["smoothing"].toDouble();
    const at::Tensor of_logits = at::empty_like(logits), gradient = gradients[0].contiguous();
    kernels.cross_entropy_backward({.of = described(logits, {saved[1], saved[2], saved[3]}, smoothing),
                                    .log_sums = log_sums.const_data_ptr<float>(),
                                    .gradient = gradient.const_data_ptr<float>(),
                                    .of_logits = of_logits.mutable_data_ptr<float>()},
                                   device::KernelStream(kernels, logits));
    return {of_logits, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

bool is_for_device(const at::Tensor& logits) {
  return device::kernels_for(logits, &device::DeviceKernels::cross_entropy,
                             &device::DeviceKernels::cross_entropy_backward) != nullptr &&
         logits.scalar_type() == at::kFloat;
}

}  // namespace

at::Tensor cross_entropy_sum(const at::Tensor& logits, const Labels& labels, double smoothing) {
  if (is_for_device(logits)) {
    const auto given = [](const at::Tensor& t) { return t.defined() ? std::optional(t) : std::nullopt; };
    return FusedCrossEntropy::apply(logits, labels.first, given(labels.second), given(labels.share),
                                    smoothing);
  }
  if (!labels.second.defined()) {
    return at::cross_entropy_loss(logits, labels.first, {}, at::Reduction::Sum, -100, smoothing);
  }
  // The loss is linear in the target: two labels need no dense one.
  const at::Tensor logs = at::log_softmax(logits, 1);
  const auto of = [&](const at::Tensor& label) { return logs.gather(1, label.unsqueeze(1)).squeeze(1); };
  const at::Tensor mixed = of(labels.first) * labels.share + of(labels.second) * (1 - labels.share);
  const at::Tensor loss = mixed.sum() * (smoothing - 1);
  return smoothing > 0 ? loss - logs.sum() * (smoothing / static_cast<double>(logits.size(1))) : loss;
}

}  // namespace tessera::ops
