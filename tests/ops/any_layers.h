// SPDX-License-Identifier: Apache-2.0
// Every differentiable op and every update of an optimizer, as tables: tests compare them between kernels and
// LibTorch's operations, and between devices.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

#include "tessera/ops/adafactor.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/elementwise.h"
#include "tessera/ops/few_query_attention.h"
#include "tessera/ops/lamb.h"
#include "tessera/ops/layer_norm.h"
#include "tessera/ops/linear.h"
#include "tessera/ops/mlp.h"
#include "tessera/ops/orthogonalise.h"
#include "tests/ops/beside_formula.h"

namespace tessera::ops {

/// Differentiable: an op of tensors of these shapes.
struct AnyLayer {
  std::string name;
  std::vector<std::vector<int64_t>> shapes;
  std::function<at::Tensor(const Tensors&)> run;
};

inline std::vector<AnyLayer> any_layers() {
  return {
      {"linear", {{5, 7, 33}, {50, 33}, {50}}, [](const Tensors& t) { return linear(t[0], t[1], t[2]); }},
      {"linear of a patch embedding",
       {{2, 9, 48}, {40, 3, 4, 4}, {40}},
       [](const Tensors& t) { return linear(t[0], t[1], t[2]); }},
      {"linear_gelu",
       {{70, 64}, {96, 64}, {96}},
       [](const Tensors& t) { return linear_gelu(t[0], t[1], t[2]); }},
      {"linear_add",
       {{3, 17, 64}, {32, 64}, {32}, {3, 17, 32}},
       [](const Tensors& t) { return linear_add(t[0], t[1], t[2], t[3]); }},
      {"normed_linear",
       {{6, 19, 48}, {48}, {48}, {60, 48}, {60}},
       [](const Tensors& t) {
         return linear(normed(t[0], {t[1], t[2], 1e-6}), t[3], t[4]);
       }},
      {"normed_linear_gelu",
       {{6, 19, 48}, {48}, {48}, {60, 48}, {60}},
       [](const Tensors& t) {
         return linear_gelu(normed(t[0], {t[1], t[2], 1e-6}), t[3], t[4]);
       }},
      {"mlp",
       {{6, 19, 48}, {48}, {48}, {96, 48}, {96}, {48, 96}, {48}, {6, 19, 48}},
       [](const Tensors& t) {
         return mlp(normed(t[0], {t[1], t[2], 1e-6}), t[3], t[4], t[5], t[6], t[7]);
       }},
      {"layer_norm",
       {{6, 19, 48}, {48}, {48}},
       [](const Tensors& t) { return layer_norm(t[0], t[1], t[2], 1e-6); }},
      {"self_attention", {{2, 37, 3 * 4 * 16}}, [](const Tensors& t) { return self_attention(t[0], 4); }},
      {"cross_attention",
       {{2, 3, 4 * 16}, {2, 21, 2 * 4 * 16}},
       [](const Tensors& t) { return cross_attention(t[0], t[1], 4); }},
      {"few_query_attention",
       {{3, 21, 64}, {64}, {64}, {192, 64}, {192}},
       [](const Tensors& t) {
         return few_query_attention(normed(t[0], {t[1], t[2], 1e-6}), t[3] / 4, t[4], 4, 2);
       }},
      {"attention",
       {{2, 3, 4, 16}, {2, 21, 4, 16}, {2, 21, 4, 16}},
       [](const Tensors& t) { return attention(t[0], t[1], t[2]); }},
  };
}

inline Tensors layer_inputs(const AnyLayer& layer, const at::TensorOptions& options) {
  at::manual_seed(4);
  Tensors inputs;
  for (const auto& shape : layer.shapes) {
    inputs.push_back(at::randn(shape).mul_(0.5).to(options.device(), options.dtype().toScalarType()));
    inputs.back().requires_grad_();
  }
  return inputs;
}

/// The output, then every input's gradient.
inline Tensors run_layer(const AnyLayer& layer, const at::TensorOptions& options) {
  const Tensors inputs = layer_inputs(layer, options);
  const at::Tensor out = layer.run(inputs);
  at::manual_seed(5);
  out.backward(at::randn(out.sizes()).to(options.device(), options.dtype().toScalarType()));
  Tensors all = {out.detach()};
  for (const at::Tensor& input : inputs) all.push_back(input.grad());
  return all;
}

/// An update of flat shards: t[0] the parameter, t[1] the gradient, the others what is kept.
struct AnyUpdate {
  std::string name;
  size_t kept;
  std::function<void(const Tensors&, int64_t step)> run;
};

inline std::vector<AnyUpdate> any_updates() {
  std::vector<AnyUpdate> all;
  for (const bool coupled : {false, true}) {
    all.push_back({coupled ? "adam" : "adamw", 2, [coupled](const Tensors& t, int64_t step) {
                     adamw(t[0], t[1], t[2], t[3], {1e-2, 0.9, 0.98, 1e-8, 0.1, step, 0.7, coupled});
                   }});
  }
  for (const bool nesterov : {false, true}) {
    all.push_back({nesterov ? "nesterov" : "sgd", 1, [nesterov](const Tensors& t, int64_t) {
                     sgd(t[0], t[1], t[2], {1e-2, 0.9, 1e-3, nesterov, 0.7});
                   }});
  }
  all.push_back({"sgd without momentum", 0, [](const Tensors& t, int64_t) {
                   sgd(t[0], t[1], {}, {1e-2, 0, 1e-3, false, 0.7});
                 }});
  all.push_back({"lion", 1, [](const Tensors& t, int64_t) {
                   lion(t[0], t[1], t[2], {1e-3, 0.9, 0.99, 0.1, 0.7});
                 }});
  all.push_back({"move_average", 1, [](const Tensors& t, int64_t) {
                   t[0].sub_(t[1], 1e-2);
                   move_average(t[2], t[0], 0.9);
                 }});
  all.push_back({"lamb", 2, [](const Tensors& t, int64_t step) {
                   lamb_direction(t[1], t[0], t[1], t[2], t[3], {0.9, 0.99, 1e-6, 0.1, step, 0.7});
                   t[0].sub_(t[1], 1e-2);
                 }});
  all.push_back({"adafactor of a vector", 2, [](const Tensors& t, int64_t) {
                   divide_by_root(t[1], 0.7, t[2], 0.9);
                   follow(t[0], t[1], t[3], 1e-2, 0.9, 0.1);
                 }});
  all.push_back({"adafactor without momentum", 1, [](const Tensors& t, int64_t) {
                   divide_by_root(t[1], 0.7, t[2], 0.9);
                   follow(t[0], t[1], {}, 1e-2, 0, 0.1);
                 }});
  all.push_back({"muon's direction", 0, [](const Tensors& t, int64_t) {
                   t[0].sub_(orthogonalised(t[1].view({-1, 41}), at::kFloat).view({-1}), 1e-2);
                 }});
  return all;
}

inline Tensors after_steps(const AnyUpdate& update, int64_t steps, at::Device device = at::kCPU) {
  at::manual_seed(6);
  Tensors tensors = {at::randn({41 * 23}).to(device), {}};
  for (size_t i = 0; i < update.kept; ++i) tensors.push_back(at::zeros({41 * 23}, device));
  for (int64_t step = 1; step <= steps; ++step) {
    tensors[1] = at::randn({41 * 23}).to(device);
    update.run(tensors, step);
  }
  return tensors;
}

}  // namespace tessera::ops
