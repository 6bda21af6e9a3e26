// SPDX-License-Identifier: Apache-2.0
// A layer that two and three ranks hold together, against the same layer by hand.
#include "tessera/parallel/tensor_group.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/mesh/ranks.h"

namespace tessera::parallel {
namespace {

plan::Plan plan_of(int64_t ranks) {
  plan::Plan plan;
  plan.world = ranks;
  plan.units.resize(3);
  plan.units[0].name = "stem";
  plan.units[1].name = "blocks.0";
  plan.units[1].layout.tensor = ranks;
  plan.units[2].name = "blocks.1";
  plan.units[2].layout.tensor = ranks;
  return plan;
}

TEST(TensorGroups, UnitsOfOneLayoutShareAGroup) {
  const plan::Plan plan = plan_of(2);
  testing::run_ranks(
      {{"stage", 2}},
      [&](mesh::Mesh& mesh) {
        TensorGroups groups(plan, mesh);
        EXPECT_EQ(groups.of("stem"), nullptr);
        ASSERT_NE(groups.of("blocks.0"), nullptr);
        EXPECT_EQ(groups.of("blocks.0")->index(), groups.of("blocks.1")->index());
        EXPECT_EQ(groups.of("blocks.0")->size(), 2);
        EXPECT_EQ(groups.of("blocks.0")->rank(), mesh.rank());
      },
      std::chrono::milliseconds(30'000), true, plan::spans_of(plan));
}

/// Ranks may hold any number of samples, and more than a first message has room for.
TEST(TensorGroups, LearnsWhoHoldsWhichSamples) {
  const plan::Plan plan = plan_of(3);
  testing::run_ranks(
      {{"stage", 3}},
      [&](mesh::Mesh& mesh) {
        TensorGroups groups(plan, mesh);
        const int64_t index = mesh.rank();
        for (const std::vector<int64_t>& counts :
             {std::vector<int64_t>{2, 0, 1}, {0, 0, 0}, {1, 1000, 65}, {3, 3, 3}}) {
          std::vector<uint64_t> mine;
          const uint64_t first = (uint64_t{1} << 63) + 10000 * static_cast<uint64_t>(index);
          for (int64_t i = 0; i < counts[static_cast<size_t>(index)]; ++i)
            mine.push_back(first + static_cast<uint64_t>(i));
          const std::vector<GroupSamples> all = groups.exchange(mine);
          ASSERT_EQ(all.size(), 1U);
          EXPECT_EQ(all[0].counts, counts);
          std::vector<uint64_t> expected;
          for (uint64_t rank = 0; rank < 3; ++rank) {
            for (int64_t i = 0; i < counts[rank]; ++i)
              expected.push_back((uint64_t{1} << 63) + 10000 * rank + static_cast<uint64_t>(i));
          }
          EXPECT_EQ(all[0].numbers, expected);
        }
      },
      std::chrono::milliseconds(30'000), true, plan::spans_of(plan));
}

/// y = relu(x a) b + bias + x: rank i holds columns of a and rows of b.
TEST(TensorGroup, LayerOfThreeRanks) {
  const plan::Plan plan = plan_of(3);
  const auto counts = std::vector<int64_t>{2, 0, 1};
  const auto numbers = [](at::IntArrayRef shape, double step) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    return at::arange(count, at::kDouble).mul_(step).sin_().view(shape);
  };
  const auto leaf = [](const at::Tensor& values) { return values.clone().set_requires_grad(true); };
  const at::Tensor x = leaf(numbers({3, 2, 4}, 0.7)), a = leaf(numbers({4, 5}, 1.3)),
                   b = leaf(numbers({5, 4}, 0.9)), bias = leaf(numbers({4}, 2.1)),
                   weights = numbers({3, 2, 4}, 0.3);
  const at::Tensor expected = at::matmul(at::relu(at::matmul(x, a)), b) + bias + x;
  torch::autograd::backward({(expected * weights).sum()}, {});
  at::Tensor bias_gradient = at::zeros({4}, at::kDouble);
  std::mutex lock;
  testing::run_ranks(
      {{"stage", 3}},
      [&](mesh::Mesh& mesh) {
        const TensorGroups groups(plan, mesh);
        const TensorGroup& group = *groups.of("blocks.0");
        const GroupSamples samples{counts, {}};
        const int64_t rank = mesh.rank(), first = rank == 0 ? 0 : 2,
                      count = counts[static_cast<size_t>(rank)];
        const int64_t column = 5 * rank / 3, columns = 5 * (rank + 1) / 3 - column;
        const at::Tensor mine = leaf(x.detach().narrow(0, first, count)),
                         part_a = leaf(a.detach().narrow(1, column, columns)),
                         part_b = leaf(b.detach().narrow(0, column, columns)), own_bias = leaf(bias.detach());
        const at::Tensor rows = group.enter(mine, samples, "layer");
        const at::Tensor partial = at::matmul(at::relu(at::matmul(rows, part_a)), part_b);
        const at::Tensor y = group.leave(partial, {own_bias, mine}, samples, "layer");
        EXPECT_TRUE(at::allclose(y, expected.narrow(0, first, count), 0, 1e-14));
        torch::autograd::backward({(y * weights.narrow(0, first, count)).sum()}, {});
        EXPECT_TRUE(at::allclose(mine.grad(), x.grad().narrow(0, first, count), 0, 1e-14));
        EXPECT_TRUE(at::allclose(part_a.grad(), a.grad().narrow(1, column, columns), 0, 1e-14));
        EXPECT_TRUE(at::allclose(part_b.grad(), b.grad().narrow(0, column, columns), 0, 1e-14));
        const std::lock_guard one(lock);
        bias_gradient += own_bias.grad();
      },
      std::chrono::milliseconds(30'000), true, plan::spans_of(plan));
  EXPECT_TRUE(at::allclose(bias_gradient, bias.grad(), 0, 1e-14));
}

/// bf16: partial sums are added in float32, bias and residual as well, and rounded once.
TEST(TensorGroup, RoundsASumOnce) {
  const plan::Plan plan = plan_of(2);
  testing::run_ranks(
      {{"stage", 2}},
      [&](mesh::Mesh& mesh) {
        const TensorGroups groups(plan, mesh);
        const GroupSamples samples{{1, 1}, {}};
        // 256 + 1 + 1 + 0.5 + 0.5: bf16 has no 257, and rounding after each addition would give 256.
        const at::Tensor partial = at::full({2, 1}, mesh.rank() == 0 ? 256.0 : 1.0).to(at::kBFloat16);
        const at::Tensor sum =
            groups.of("blocks.0")
                ->leave(partial,
                        {at::full({1}, 1.0).to(at::kBFloat16), at::full({1, 1}, 2.0).to(at::kBFloat16)},
                        samples, "layer");
        EXPECT_EQ(sum.item<double>(), 260.0);
        EXPECT_EQ(sum.scalar_type(), at::kBFloat16);
      },
      std::chrono::milliseconds(30'000), true, plan::spans_of(plan));
}

}  // namespace
}  // namespace tessera::parallel
