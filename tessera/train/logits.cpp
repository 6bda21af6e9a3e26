// SPDX-License-Identifier: Apache-2.0
// The logits or features of a model whose weights any source of tensors gives: how a conversion is checked.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <memory>
#include <optional>

#include "tessera/models/inference.h"
#include "tessera/models/segmented_model.h"
#include "tessera/train/commands.h"
#include "tessera/weights/finetune.h"

namespace tessera::train {

std::vector<float> logits(const LogitsJob& job) {
  const at::NoGradGuard no_grad;
  arch::VitConfig config = job.model;
  checkpoint::TensorSource* weights = job.weights;
  std::optional<weights::FinetunedSource> with_head;
  if (job.features && config.classes == 0) {
    config.classes = 1;  // a model has a head; nothing reads what this one computes
    const std::shared_ptr<checkpoint::TensorSource> unowned(weights, [](checkpoint::TensorSource*) {});
    with_head.emplace(unowned, job.model, config,
                      weights::FinetuneOptions{.positions = {}, .head = weights::HeadStart::kZero});
    weights = &*with_head;
  }
  const auto model = models::load_model(config, *weights);
  const int64_t pixels = config.channels * config.image_size * config.image_size;
  const int64_t count = static_cast<int64_t>(job.images.size()) / pixels;
  const at::Tensor images =
      at::from_blob(const_cast<float*>(job.images.data()),
                    {count, config.channels, config.image_size, config.image_size}, at::kFloat);
  at::Tensor features;
  models::ForwardContext context;
  if (job.features) {
    context.observe = [&features](const std::string& name, const at::Tensor& value) {
      if (name == "features") features = value;
    };
  }
  const at::Tensor logits = model->forward(images, context);
  const at::Tensor out = (job.features ? features : logits).contiguous();
  return {out.data_ptr<float>(), out.data_ptr<float>() + out.numel()};
}

}  // namespace tessera::train
