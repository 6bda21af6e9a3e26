// SPDX-License-Identifier: Apache-2.0
// The logits of a model whose weights any source of tensors gives: how a conversion is checked.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "tessera/models/alone.h"
#include "tessera/models/segmented_model.h"
#include "tessera/train/commands.h"

namespace tessera::train {

std::vector<float> logits(const LogitsJob& job) {
  const at::NoGradGuard no_grad;
  const auto model = models::load_model(job.model, *job.weights);
  const auto& config = job.model;
  const int64_t pixels = config.channels * config.image_size * config.image_size;
  const int64_t count = static_cast<int64_t>(job.images.size()) / pixels;
  const at::Tensor images =
      at::from_blob(const_cast<float*>(job.images.data()),
                    {count, config.channels, config.image_size, config.image_size}, at::kFloat);
  const at::Tensor out = model->forward(images, {}).contiguous();
  return {out.data_ptr<float>(), out.data_ptr<float>() + out.numel()};
}

}  // namespace tessera::train
