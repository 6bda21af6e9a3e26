// SPDX-License-Identifier: Apache-2.0
// Networks that know nothing of sharding, and what they do without it.
#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/nn.h>

#include <string>
#include <vector>

#include "tessera/base/random.h"
#include "tessera/shard/recompute.h"

namespace tessera::testing {

/// Calls its children directly, has two inputs, a tied weight (the embedding is the output layer), a weight
/// of its own, a frozen, an unused and an empty parameter, BatchNorm, and a child that is called twice.
struct ForeignNet : torch::nn::Module {
  static constexpr int64_t kTokens = 11, kWidth = 6, kHidden = 13;
  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear fc1{nullptr}, fc2{nullptr}, twice{nullptr}, frozen{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  at::Tensor scale, unused, empty;
  bool recomputes = false;  // keep only what enters the middle layers, one of them inside the other

  ForeignNet() {
    embedding = register_module("embedding", torch::nn::Embedding(kTokens, kWidth));
    fc1 = register_module("fc1", torch::nn::Linear(kWidth + 3, kHidden));
    norm = register_module("norm", torch::nn::BatchNorm1d(kHidden));
    twice = register_module("twice", torch::nn::Linear(kHidden, kHidden));
    frozen = register_module("frozen", torch::nn::Linear(kHidden, kHidden));
    fc2 = register_module("fc2", torch::nn::Linear(kHidden, kWidth));
    scale = register_parameter("scale", torch::ones({kHidden}));
    unused = register_parameter("unused", torch::ones({3}));
    empty = register_parameter("empty", torch::ones({0, 4}));
    for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
  }

  /// tokens [batch] int64, extra [batch, 3] -> [batch, kTokens]
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& extra) {
    at::Tensor x = torch::cat({embedding->forward(tokens), extra.to(embedding->weight.dtype())}, 1);
    x = recomputes ? shard::recompute([this](const at::Tensor& h) { return middle(h); }, x) : middle(x);
    return at::matmul(torch::tanh(fc2->forward(x)), embedding->weight.t());
  }

 private:
  at::Tensor middle(at::Tensor x) {
    const auto first = [this](const at::Tensor& h) { return torch::tanh(norm->forward(fc1->forward(h))); };
    x = recomputes ? shard::recompute(first, x) : first(x);
    x = torch::tanh(twice->forward(x)) + x;
    return torch::tanh(twice->forward(x)) * scale + frozen->forward(x);
  }
};

/// Values that depend on the name alone.
inline void set_values(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (auto& entry : module.named_parameters()) {
    at::Tensor& parameter = entry.value();
    if (!parameter.defined() || !parameter.is_floating_point() || parameter.numel() == 0) continue;
    std::vector<float> values(static_cast<size_t>(parameter.numel()));
    fill_normal(random_key(5, entry.key()), 0, values, 0.0F, 0.4F, 3.0F);
    parameter.copy_(at::from_blob(values.data(), parameter.sizes(), at::kFloat));
  }
}

inline at::Tensor normal(const std::string& name, at::IntArrayRef shape) {
  at::Tensor tensor = at::empty(shape, at::kFloat);
  fill_normal(random_key(9, name), 0, {tensor.data_ptr<float>(), static_cast<size_t>(tensor.numel())}, 0.0F,
              1.0F, 4.0F);
  return tensor;
}

}  // namespace tessera::testing
