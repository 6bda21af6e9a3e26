// SPDX-License-Identifier: Apache-2.0
// What is computed where this room has no kernels: the same maths, and nothing that touches memory of another
// device.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "tessera/ops/adafactor.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/cpu.h"
#include "tessera/ops/elementwise.h"
#include "tessera/ops/keyless_attention.h"
#include "tessera/ops/lamb.h"
#include "tessera/ops/layer_norm.h"
#include "tessera/ops/linear.h"
#include "tessera/ops/orthogonalise.h"
#include "tessera/ops/random_mask.h"
#include "tests/meta_kernels.h"
#include "tests/ops/beside_formula.h"

namespace tessera::ops {
namespace {

/// The largest difference as a share of the largest value.
double difference(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) return 0;
  const at::Tensor exact = b.to(at::kDouble);
  return ((a.to(at::kDouble) - exact).abs().max() / exact.abs().max().clamp_min(1e-30)).item<double>();
}

/// Differentiable: an op of tensors of these shapes.
struct AnyLayer {
  std::string name;
  std::vector<std::vector<int64_t>> shapes;
  std::function<at::Tensor(const Tensors&)> run;
};

std::vector<AnyLayer> layers() {
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
      {"layer_norm",
       {{6, 19, 48}, {48}, {48}},
       [](const Tensors& t) { return layer_norm(t[0], t[1], t[2], 1e-6); }},
      {"self_attention", {{2, 37, 3 * 4 * 16}}, [](const Tensors& t) { return self_attention(t[0], 4); }},
      {"cross_attention",
       {{2, 3, 4 * 16}, {2, 21, 2 * 4 * 16}},
       [](const Tensors& t) { return cross_attention(t[0], t[1], 4); }},
      {"keyless_attention",
       {{3, 21, 64}, {64}, {64}, {192, 64}, {192}},
       [](const Tensors& t) {
         return keyless_attention(normed(t[0], {t[1], t[2], 1e-6}), t[3] / 4, t[4], 4, 2);
       }},
      {"attention",
       {{2, 3, 4, 16}, {2, 21, 4, 16}, {2, 21, 4, 16}},
       [](const Tensors& t) { return attention(t[0], t[1], t[2]); }},
  };
}

Tensors layer_inputs(const AnyLayer& layer, const at::TensorOptions& options) {
  at::manual_seed(4);
  Tensors inputs;
  for (const auto& shape : layer.shapes) {
    inputs.push_back(at::randn(shape).mul_(0.5).to(options.device(), options.dtype().toScalarType()));
    inputs.back().requires_grad_();
  }
  return inputs;
}

/// The output, then every input's gradient.
Tensors run_layer(const AnyLayer& layer, const at::TensorOptions& options) {
  const Tensors inputs = layer_inputs(layer, options);
  const at::Tensor out = layer.run(inputs);
  at::manual_seed(5);
  out.backward(at::randn(out.sizes()).to(options.device(), options.dtype().toScalarType()));
  Tensors all = {out.detach()};
  for (const at::Tensor& input : inputs) all.push_back(input.grad());
  return all;
}

TEST(Foreign, LayersAndTheirGradientsAreTheKernels) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const AnyLayer& layer : layers()) {
      SCOPED_TRACE(layer.name + " in " + at::toString(dtype));
      const Tensors expected = run_layer(layer, dtype);
      const WithoutKernels foreign;
      const Tensors found = run_layer(layer, dtype);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(found[i].scalar_type(), dtype);
        EXPECT_LT(difference(found[i], expected[i]), dtype == at::kFloat ? 1e-6 : 2e-2)
            << "output or gradient " << i;
      }
    }
  }
}

// A tensor without memory, on a device that is not the CPU: an op that touched its memory, or made one of its
// tensors elsewhere, would fail.
TEST(Foreign, LayersStayOnTheirDevice) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const AnyLayer& layer : layers()) {
      SCOPED_TRACE(layer.name + " in " + at::toString(dtype));
      const Tensors expected = run_layer(layer, dtype);
      const Tensors found = run_layer(layer, at::TensorOptions(dtype).device(at::kMeta));
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(found[i].is_meta());
        EXPECT_EQ(found[i].scalar_type(), dtype);
        EXPECT_EQ(found[i].sizes(), expected[i].sizes());
      }
    }
  }
}

/// An update of flat shards: t[0] the parameter, t[1] the gradient, the others what is kept.
struct AnyUpdate {
  std::string name;
  size_t kept;
  std::function<void(const Tensors&, int64_t step)> run;
};

std::vector<AnyUpdate> any_updates() {
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
                   t[0].sub_(orthogonalised(t[1].view({-1, 41})).view({-1}), 1e-2);
                 }});
  return all;
}

Tensors after_steps(const AnyUpdate& update, int64_t steps) {
  at::manual_seed(6);
  Tensors tensors = {at::randn({41 * 23}), {}};
  for (size_t i = 0; i < update.kept; ++i) tensors.push_back(at::zeros({41 * 23}));
  for (int64_t step = 1; step <= steps; ++step) {
    tensors[1] = at::randn({41 * 23});
    update.run(tensors, step);
  }
  return tensors;
}

TEST(Foreign, UpdatesAreTheKernelsOverTenSteps) {
  for (const AnyUpdate& update : any_updates()) {
    SCOPED_TRACE(update.name);
    const Tensors expected = after_steps(update, 10);
    const WithoutKernels foreign;
    const Tensors found = after_steps(update, 10);
    EXPECT_GT(difference(expected[0], after_steps(update, 9)[0]), 1e-5);  // they do something
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_LT(difference(found[i], expected[i]), 1e-6) << i;
  }
}

TEST(Foreign, UpdatesStayOnTheirDevice) {
  for (const AnyUpdate& update : any_updates()) {
    SCOPED_TRACE(update.name);
    Tensors tensors(2 + update.kept);
    for (at::Tensor& tensor : tensors) tensor = at::zeros({41 * 23}, at::kMeta);
    EXPECT_NO_THROW(update.run(tensors, 1));
  }
}

// Any part of a tensor of any number of dims: the places of its moments are found without its memory.
TEST(Foreign, AdafactorsRowsAndColumnsAreTheKernels) {
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{40, 50}, {50, 40}, {33, 3, 37}, {2, 64, 36}}) {
    const Factored tensor = *factored(shape);
    at::manual_seed(7);
    const at::Tensor whole = at::randn({shape[0] * shape[1] * (shape.size() > 2 ? shape[2] : 1)});
    for (const int64_t begin : {int64_t{0}, int64_t{77}}) {
      const at::Tensor part = whole.narrow(0, begin, whole.numel() - begin - 13);
      const at::Tensor row = at::rand(tensor.row_shape) + 0.1, column = at::rand(tensor.column_shape) + 0.1;
      const auto both = [&] {
        at::Tensor rows = at::ones({tensor.row_numel}, at::kDouble);
        at::Tensor columns = at::ones({tensor.column_numel}, at::kDouble);
        add_squares(tensor, part, begin, 0.7, rows.data_ptr<double>(), columns.data_ptr<double>());
        const at::Tensor divided = part.clone();
        divide_by_root(tensor, divided, begin, 0.7, row, column);
        return Tensors{rows, columns, divided};
      };
      const Tensors expected = both();
      const WithoutKernels foreign;
      const Tensors found = both();
      EXPECT_LT(difference(found[0], expected[0]), 1e-12);
      EXPECT_LT(difference(found[1], expected[1]), 1e-12);
      EXPECT_LT(difference(found[2], expected[2]), 1e-6);
      const at::Tensor hollow = at::empty({part.numel()}, at::kMeta);
      divide_by_root(tensor, hollow, begin, 0.7, row.to(at::kMeta), column.to(at::kMeta));
    }
  }
}

TEST(Foreign, KernelsAreBackAfterwards) {
  {
    const WithoutKernels foreign, nested;
    EXPECT_FALSE(kernels_are_on());
  }
  EXPECT_TRUE(kernels_are_on());
}

}  // namespace
}  // namespace tessera::ops
