// SPDX-License-Identifier: Apache-2.0
// Cut linear layers on several ranks against torch::nn::Linear on one.
#include "tessera/library/tensor_parallel.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <memory>
#include <mutex>
#include <numeric>

#include "../error_text.h"
#include "../mesh/ranks.h"
#include "tessera/shard/fully_shard.h"

namespace tessera {
namespace {

using library::ColumnLinear, library::CutLinearOptions, library::RowLinear, library::TensorParallelGroup;
using Counts = std::vector<int64_t>;

constexpr int64_t kWidth = 4;

/// The generator belongs to the process, and ranks are threads here.
std::mutex& generator() {
  static std::mutex mutex;
  return mutex;
}

template <typename Net, typename... Arguments>
std::shared_ptr<Net> seeded(at::ScalarType dtype, Arguments&&... arguments) {
  const std::lock_guard lock(generator());
  torch::manual_seed(3);
  auto net = std::make_shared<Net>(std::forward<Arguments>(arguments)...);
  net->to(dtype);
  return net;
}

struct Shape {
  int64_t hidden = 5, items = 0;
  bool bias = true;
};

/// y = fc2(gelu(fc1(in(x)))) + in(x), cut from fc1 to fc2.
struct CutNet : torch::nn::Module {
  CutNet(const Shape& shape, TensorParallelGroup& its_group)
      : in(register_module("in", torch::nn::Linear(kWidth, kWidth))),
        fc1(register_module(
            "fc1", ColumnLinear(CutLinearOptions(kWidth, shape.hidden).items(shape.items).bias(shape.bias),
                                its_group))),
        fc2(register_module(
            "fc2", RowLinear(CutLinearOptions(shape.hidden, kWidth).items(shape.items).bias(shape.bias),
                             its_group))),
        group(its_group) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor own = in->forward(x);
    return fc2->forward(at::gelu(fc1->forward(group.enter(own, "mlp"))), own);
  }
  torch::nn::Linear in;
  ColumnLinear fc1;
  RowLinear fc2;
  TensorParallelGroup& group;
};

struct WholeNet : torch::nn::Module {
  explicit WholeNet(const Shape& shape)
      : in(register_module("in", torch::nn::Linear(kWidth, kWidth))),
        fc1(register_module(
            "fc1", torch::nn::Linear(torch::nn::LinearOptions(kWidth, shape.hidden).bias(shape.bias)))),
        fc2(register_module(
            "fc2", torch::nn::Linear(torch::nn::LinearOptions(shape.hidden, kWidth).bias(shape.bias)))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor own = in->forward(x);
    return fc2->forward(at::gelu(fc1->forward(own))) + own;
  }
  torch::nn::Linear in, fc1, fc2;
};

at::Tensor wave(at::IntArrayRef shape, double step) {
  const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  return at::arange(count, at::kDouble).mul(step).sin().view(shape);
}

int64_t sum_of(const Counts& counts, size_t end) {
  return std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(end), int64_t{0});
}

/// Hidden units that a rank holds, from the definition.
DimRange hidden_of(const Shape& shape, int64_t ranks, int64_t rank) {
  const int64_t items = shape.items == 0 ? shape.hidden : shape.items, size = shape.hidden / items;
  return {items * rank / ranks * size, items * (rank + 1) / ranks * size};
}

/// What a rank holds of a whole tensor of WholeNet.
at::Tensor part_of(const std::string& name, const at::Tensor& whole, const DimRange& hidden) {
  if (name == "fc1.weight" || name == "fc1.bias") return whole.narrow(0, hidden.begin, hidden.size());
  return name == "fc2.weight" ? whole.narrow(1, hidden.begin, hidden.size()) : whole;
}

void expect_close(const at::Tensor& actual, const at::Tensor& expected, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (actual.numel() == 0) return;
  EXPECT_LE((actual - expected).abs().max().item<double>(), tolerance) << what;
}

/// The whole network's output and gradients, of the sum of weighted outputs.
struct Expected {
  Expected(const Shape& shape, int64_t samples) : net(seeded<WholeNet>(at::kDouble, shape)) {
    x = wave({samples, 2, kWidth}, 0.7).set_requires_grad(true);
    weights = wave({samples, 2, kWidth}, 0.3);
    y = net->forward(x);
    (y * weights).sum().backward();
  }
  std::shared_ptr<WholeNet> net;
  at::Tensor x, weights, y;
};

/// One pass of a data-parallel copy whose ranks have `counts` samples of those from `first` on.
void run_pass(CutNet& net, const Counts& counts, int64_t first, const Expected& expected,
              bool learns_counts) {
  const auto rank = static_cast<size_t>(net.group.rank());
  const int64_t begin = first + sum_of(counts, rank), count = counts[rank];
  if (learns_counts) {
    net.group.begin(count);
  } else {
    net.group.set_counts(counts);
  }
  EXPECT_EQ(net.group.counts(), counts);
  const at::Tensor x = expected.x.detach().narrow(0, begin, count).clone().set_requires_grad(true);
  const at::Tensor y = net.forward(x);
  expect_close(y, expected.y.narrow(0, begin, count), 1e-12, "output");
  (y * expected.weights.narrow(0, begin, count)).sum().backward();
  expect_close(x.grad(), expected.x.grad().narrow(0, begin, count), 1e-12, "gradient of the input");
}

void expect_parts(CutNet& net, const Shape& shape, const Expected& expected, bool gradients) {
  const DimRange hidden = hidden_of(shape, net.group.size(), net.group.rank());
  EXPECT_EQ(net.fc1->features(), hidden);
  EXPECT_EQ(net.fc2->features(), hidden);
  EXPECT_EQ(net.parameters().size(), expected.net->parameters().size());
  const auto wholes = expected.net->named_parameters();
  for (const auto& entry : net.named_parameters()) {
    const at::Tensor whole = gradients ? wholes[entry.key()].grad() : wholes[entry.key()].detach();
    expect_close(gradients ? entry.value().grad() : entry.value().detach(),
                 part_of(entry.key(), whole, hidden), gradients ? 1e-12 : 0, entry.key());
  }
}

void check_layout(const Shape& shape, const std::vector<Counts>& counts) {
  const auto copies = static_cast<int64_t>(counts.size()), ranks = static_cast<int64_t>(counts[0].size());
  int64_t samples = 0;
  for (const Counts& of_copy : counts) samples += sum_of(of_copy, of_copy.size());
  const Expected expected(shape, samples);
  testing::run_ranks({{"dp", copies}, {"tensor", ranks}}, [&](mesh::Mesh& mesh) {
    TensorParallelGroup group(mesh, "tensor");
    const auto net = seeded<CutNet>(at::kDouble, shape, group);
    expect_parts(*net, shape, expected, /*gradients=*/false);
    const auto copy = static_cast<size_t>(mesh.coordinate("dp"));
    int64_t first = 0;
    for (size_t before = 0; before < copy; ++before) first += sum_of(counts[before], counts[before].size());
    run_pass(*net, counts[copy], first, expected, /*learns_counts=*/copies == 1);
    library::sum_gradients(*net, mesh.world(), mesh.group("dp"));
    expect_parts(*net, shape, expected, /*gradients=*/true);
  });
}

TEST(TensorParallel, UnevenColumnsAndSamplesMatchTorchLinear) {
  check_layout({}, {{2, 1}});
  check_layout({}, {{0, 3}});
  check_layout({}, {{2, 0, 1}});
  check_layout({.bias = false}, {{1, 2, 1}});
  check_layout({}, {{3}});
}

TEST(TensorParallel, CopyWithoutSamplesHasZeroGradients) { check_layout({}, {{0, 0}, {2, 1}}); }

TEST(TensorParallel, RankThatHoldsNothingTakesPart) {
  check_layout({.hidden = 2}, {{1, 0, 2}});
  check_layout({.hidden = 1, .bias = false}, {{0, 2, 1}});
}

TEST(TensorParallel, ItemsStayWhole) { check_layout({.hidden = 6, .items = 3}, {{2, 1}}); }

TEST(TensorParallel, GradientsSumOverCopiesWithOtherCounts) { check_layout({}, {{2, 1}, {0, 3}}); }

/// Micro-batches with different counts, all forward passes before all backward passes.
TEST(TensorParallel, BackwardKeepsTheCountsOfItsForward) {
  const Shape shape;
  const Expected expected(shape, 5);
  testing::run_ranks({{"tensor", 2}}, [&](mesh::Mesh& mesh) {
    TensorParallelGroup group(mesh, "tensor");
    const auto net = seeded<CutNet>(at::kDouble, shape, group);
    at::Tensor loss = at::zeros({}, at::kDouble);
    int64_t first = 0;
    for (const Counts& counts : {Counts{2, 1}, Counts{0, 2}}) {
      const auto rank = static_cast<size_t>(group.rank());
      const int64_t begin = first + sum_of(counts, rank);
      group.begin(counts[rank]);
      const at::Tensor y = net->forward(expected.x.detach().narrow(0, begin, counts[rank]));
      loss = loss + (y * expected.weights.narrow(0, begin, counts[rank])).sum();
      first += sum_of(counts, 2);
    }
    loss.backward();
    library::sum_gradients(*net, mesh.world(), mesh.group(""));
    expect_parts(*net, shape, expected, /*gradients=*/true);
  });
}

/// Whole parameters sharded over all ranks by a ShardedModule that ignores cut ones: its axis "shard" is the
/// tensor-parallel group.
TEST(TensorParallel, ShardedModuleTakesTheWholeParameters) {
  const Shape shape;
  const std::vector<Counts> counts = {{2, 1}, {0, 3}};
  const Expected expected(shape, 6);
  testing::run_ranks({{"dp", 2}, {"shard", 2}}, [&](mesh::Mesh& mesh) {
    TensorParallelGroup group(mesh, "shard");
    const auto net = seeded<CutNet>(at::kDouble, shape, group);
    shard::FullyShardOptions options;
    options.ignore = library::is_cut(*net);
    options.gradients = shard::Gradients::kSum;
    shard::ShardedModule sharded(net, mesh, options);
    EXPECT_EQ(sharded.whole_parameters().size(), 3U);
    const int64_t copy = mesh.coordinate("dp");
    sharded.forward([&] { run_pass(*net, counts[static_cast<size_t>(copy)], 3 * copy, expected, true); });
    const DimRange hidden = hidden_of(shape, 2, group.rank());
    const auto wholes = expected.net->named_parameters();
    for (auto& [name, parameter] : sharded.whole_parameters()) {
      at::Tensor sum = parameter.grad().contiguous();
      mesh.group("dp").sum(sum, name);
      expect_close(sum, part_of(name, wholes[name].grad(), hidden), 1e-12, name);
    }
    for (const shard::ParameterShard& held : sharded.shards()) {
      const at::Tensor whole = wholes[held.name].grad().flatten();
      expect_close(held.values.grad(), whole.narrow(0, held.begin, held.end - held.begin), 1e-12, held.name);
    }
  });
}

/// float32 needs no conversion for the sum, so on one rank nothing but a copy protects the argument.
TEST(TensorParallel, LeaveDoesNotChangeItsArgument) {
  for (const int64_t ranks : {1, 2}) {
    testing::run_ranks({{"tensor", ranks}}, [&](mesh::Mesh& mesh) {
      TensorParallelGroup group(mesh, "tensor");
      group.begin(1);
      const at::Tensor partial = at::ones({ranks, 3}), bias = at::full({3}, 2.0);
      EXPECT_TRUE(at::equal(group.leave(partial, bias), at::full({1, 3}, 2.0 + static_cast<double>(ranks))));
      EXPECT_TRUE(at::equal(partial, at::ones({ranks, 3})));
    });
  }
}

TEST(TensorParallel, WholeLayersAreGatheredAndCutAgain) {
  for (const int64_t ranks : {1, 3}) {
    const Shape shape;
    const Expected expected(shape, 1);
    testing::run_ranks({{"tensor", ranks}}, [&](mesh::Mesh& mesh) {
      TensorParallelGroup group(mesh, "tensor");
      const auto net = seeded<CutNet>(at::kDouble, shape, group);
      const library::WholeLinear fc1 = net->fc1->whole(), fc2 = net->fc2->whole();
      EXPECT_TRUE(at::equal(fc1.weight, expected.net->fc1->weight));
      EXPECT_TRUE(at::equal(fc1.bias, expected.net->fc1->bias));
      EXPECT_TRUE(at::equal(fc2.weight, expected.net->fc2->weight));
      EXPECT_TRUE(at::equal(fc2.bias, expected.net->fc2->bias));
      net->fc1->set_whole({fc1.weight * 2, fc1.bias * 3});
      net->fc2->set_whole({fc2.weight * 4, fc2.bias * 5});
      EXPECT_TRUE(at::equal(net->fc1->whole().weight, fc1.weight * 2));
      EXPECT_TRUE(at::equal(net->fc1->whole().bias, fc1.bias * 3));
      EXPECT_TRUE(at::equal(net->fc2->whole().weight, fc2.weight * 4));
      EXPECT_TRUE(at::equal(net->fc2->whole().bias, fc2.bias * 5));
    });
  }
}

TEST(TensorParallel, Bfloat16IsCloseToFloat64) {
  const Shape shape;
  const Counts counts = {2, 0, 1};
  const Expected expected(shape, 3);
  testing::run_ranks({{"tensor", 3}}, [&](mesh::Mesh& mesh) {
    TensorParallelGroup group(mesh, "tensor");
    const auto net = seeded<CutNet>(at::kBFloat16, shape, group);
    const auto rank = static_cast<size_t>(group.rank());
    const int64_t begin = sum_of(counts, rank);
    group.begin(counts[rank]);
    const at::Tensor y = net->forward(expected.x.detach().narrow(0, begin, counts[rank]).to(at::kBFloat16));
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    expect_close(y.to(at::kDouble), expected.y.narrow(0, begin, counts[rank]), 0.03, "output");
    (y * expected.weights.narrow(0, begin, counts[rank]).to(at::kBFloat16)).sum().backward();
    library::sum_gradients(*net, mesh.world(), mesh.group(""));
    const auto wholes = expected.net->named_parameters();
    for (const auto& entry : net->named_parameters()) {
      EXPECT_EQ(entry.value().grad().scalar_type(), at::kBFloat16);
      expect_close(entry.value().grad().to(at::kDouble),
                   part_of(entry.key(), wholes[entry.key()].grad(), hidden_of(shape, 3, group.rank())), 0.06,
                   entry.key());
    }
  });
}

TEST(TensorParallel, FrozenAndUnusedParametersNeedNoGradient) {
  testing::run_ranks({{"tensor", 2}}, [&](mesh::Mesh& mesh) {
    TensorParallelGroup group(mesh, "tensor");
    const auto net = seeded<CutNet>(at::kFloat, Shape{}, group);
    net->in->weight.set_requires_grad(false);
    library::sum_gradients(*net, mesh.world(), mesh.group(""));
    EXPECT_FALSE(net->in->weight.grad().defined());
    EXPECT_TRUE(at::equal(net->in->bias.grad(), at::zeros({kWidth})));
  });
}

TEST(TensorParallel, WrongUseIsAnErrorOfOneLine) {
  testing::run_ranks({{"tensor", 2}}, [&](mesh::Mesh& mesh) {
    EXPECT_EQ(
        error_text([&] { TensorParallelGroup(mesh, "tensr"); }),
        "[library.TensorParallelGroup] the mesh has no axis 'tensr': expected one of its axes: tensor; name "
        "it in ConnectOptions::axes");
    TensorParallelGroup group(mesh, "tensor");
    const auto net = seeded<CutNet>(at::kFloat, Shape{}, group);
    const at::Tensor x = at::zeros({2, kWidth});
    EXPECT_EQ(
        error_text([&] { net->forward(x); }),
        "[library.TensorParallelGroup] mlp runs, but the counts of samples are not known: expected a call of "
        "begin() or set_counts() before the forward pass");
    EXPECT_EQ(error_text([&] {
                group.set_counts({1, 2, 3});
              }),
              "[library.TensorParallelGroup] 3 counts of samples: expected one for each of 2 ranks");
    EXPECT_EQ(error_text([&] { group.begin(mesh.rank() == 1 ? -1 : 2); }),
              "[library.TensorParallelGroup] a rank has -1 samples: expected 0 or more");
    group.set_counts({1, 1});
    EXPECT_EQ(
        error_text([&] { net->forward(x); }),
        "[library.TensorParallelGroup] mlp got a tensor of shape [2, 4]: expected [1, ...]: the ranks have "
        "[1, 1] samples; call begin() with the samples of every micro-batch");
    EXPECT_EQ(error_text([&] {
                group.leave(at::zeros({2, kWidth}), at::zeros({3}));
              }),
              "[library.tensor_parallel] layer: the bias has shape [3]: expected [4]");
    EXPECT_EQ(error_text([&] {
                group.leave(at::zeros({2, kWidth}), {}, x);
              }),
              "[library.tensor_parallel] layer: the residual has shape [2, 4]: expected [1, 4]");
    EXPECT_EQ(error_text([&] {
                net->fc1->forward(at::zeros({2, 7}));
              }),
              "[library.ColumnLinear] the input has shape [2, 7]: expected [samples, ..., 4]");
    EXPECT_EQ(error_text([&] {
                net->fc2->forward(at::zeros({2, 7}));
              }),
              concat("[library.RowLinear] the input has shape [2, 7]: expected [samples, ..., ",
                     mesh.rank() + 2, "]"));
    EXPECT_EQ(error_text([&] { group.items_of(5, 2); }),
              "[library.TensorParallelGroup] there is no rank 2: expected a rank of the group, 0 to 1");
  });
}

TEST(TensorParallel, WrongLayersAreErrorsOfOneLine) {
  testing::run_ranks({{"tensor", 1}}, [&](mesh::Mesh& mesh) {
    TensorParallelGroup group(mesh, "tensor");
    EXPECT_EQ(error_text([&] { RowLinear(0, 4, group); }),
              "[library.RowLinear] a layer of 0 -> 4 features: expected at least 1 feature on both sides");
    EXPECT_EQ(error_text([&] { ColumnLinear(CutLinearOptions(4, 6).items(4), group); }),
              "[library.ColumnLinear] 6 features cannot be 4 equal items: expected a divisor of the "
              "features, or 0");
    ColumnLinear layer(4, 6, group);
    EXPECT_EQ(error_text([&] {
                layer->set_whole({at::zeros({4, 6}), at::zeros({6})});
              }),
              "[library.tensor_parallel] the whole weight has shape [4, 6]: expected [6, 4]");
    EXPECT_EQ(error_text([&] {
                layer->set_whole({at::zeros({6, 4}), {}});
              }),
              "[library.ColumnLinear] the whole layer has no bias: expected a layer with a bias");
  });
}

}  // namespace
}  // namespace tessera
