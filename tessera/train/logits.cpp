// The logits of a model whose weights any source of tensors gives: how a conversion is checked.
#include <ATen/ATen.h>

#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/names.h"
#include "tessera/models/vit.h"
#include "tessera/train/commands.h"

namespace tessera::train {

std::vector<float> logits(const LogitsJob& job) {
  const at::NoGradGuard no_grad;
  models::VisionTransformer model(job.model);
  std::unordered_map<std::string, size_t> index;
  for (size_t i = 0; i < job.weights->tensors().size(); ++i) index[job.weights->tensors()[i].name] = i;
  for (const auto& segment : model.segments()) {
    for (const auto& [name, parameter] : segment.parameters) {
      const auto at = index.find(concat(checkpoint::names::kParameter, name));
      TESSERA_CHECK(at != index.end(), name);
      const at::Tensor value = at::empty(parameter.sizes(), at::kFloat);
      const std::span<float> numbers(value.data_ptr<float>(), static_cast<size_t>(value.numel()));
      job.weights->read(at->second, 0, std::as_writable_bytes(numbers));
      parameter.set_data(value);
    }
  }
  const auto& config = job.model;
  const int64_t pixels = config.channels * config.image_size * config.image_size;
  const int64_t count = static_cast<int64_t>(job.images.size()) / pixels;
  const at::Tensor images =
      at::from_blob(const_cast<float*>(job.images.data()),
                    {count, config.channels, config.image_size, config.image_size}, at::kFloat);
  const at::Tensor out = model.forward(images, {}).contiguous();
  return {out.data_ptr<float>(), out.data_ptr<float>() + out.numel()};
}

}  // namespace tessera::train
