// SPDX-License-Identifier: Apache-2.0
// Every level, and a mix of them, x 1-4 ranks x dtype x accumulation x recompute: an unmodified module
// against itself without sharding.
#include <gtest/gtest.h>

#include "foreign_training.h"

namespace tessera {
namespace {

using shard::FullyShardOptions;
using shard::Gradients;
using shard::Level;
using testing::Result;
using testing::Training;

constexpr const char* kMix = "mix";

FullyShardOptions options_of(const std::string& levels, at::ScalarType compute) {
  FullyShardOptions options = levels == kMix
                                  ? testing::every_level()
                                  : testing::every_child({.level = plan::level_from_string(levels)});
  if (compute == at::kFloat) return options;
  options.precision.compute = options.precision.buffer = compute;
  return options;
}

using Cell = std::tuple<const char*, int64_t>;  // levels, ranks

std::string name_of(const ::testing::TestParamInfo<Cell>& info) {
  return concat(std::get<0>(info.param), "_", std::get<1>(info.param));
}

const auto kLevels = ::testing::Values("replicate", "zero1", "zero2", "zero3", kMix);

class AnyLevel : public ::testing::TestWithParam<Cell> {};

// Only the order of sums over samples differs. bf16 rounds each micro-batch's gradients.
TEST_P(AnyLevel, EqualsTheUnshardedModule) {
  const auto [levels, world] = GetParam();
  for (const auto compute : {at::kFloat, at::kBFloat16}) {
    const Result expected = testing::unsharded(compute);
    for (const int64_t accumulation : {1, 2, 3}) {
      if (testing::kBatch % (world * accumulation) != 0) continue;
      for (const bool recompute : {false, true}) {
        for (const bool every : {true, false}) {
          if (accumulation == 1 && !every) continue;
          for (const auto gradients : {Gradients::kMean, Gradients::kSum}) {
            if (gradients == Gradients::kSum && recompute) continue;
            const bool simple = every && gradients == Gradients::kMean && accumulation < 3;
            if (compute != at::kFloat && !simple) continue;
            FullyShardOptions options = options_of(levels, compute);
            options.reduce_every_micro_batch = every;
            options.gradients = gradients;
            SCOPED_TRACE(concat(compute, " accumulation ", accumulation, " every ", every, " mean ",
                                gradients == Gradients::kMean, " recompute ", recompute));
            testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
              const Training training{.accumulation = accumulation, .recompute = recompute};
              testing::expect_close(testing::sharded(mesh, options, training), expected,
                                    compute == at::kFloat ? 1e-6 : 2e-2);
            });
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AnyLevel, ::testing::Combine(kLevels, ::testing::Values(1, 2, 3, 4)), name_of);

// 1, 2 or 4 times the same samples: (g + g) / 2 is g, so no sum is reordered and not one bit may differ.
class SameSamples : public ::testing::TestWithParam<Cell> {};

TEST_P(SameSamples, AreBitwiseTheUnshardedModule) {
  const auto [levels, world] = GetParam();
  for (const auto compute : {at::kFloat, at::kBFloat16}) {
    const Result expected = testing::unsharded(compute, /*clip=*/false);  // a norm is another sum
    for (const int64_t accumulation : {1, 2}) {
      for (const bool recompute : {false, true}) {
        for (const auto reduce : {at::kFloat, at::kBFloat16}) {
          if (compute == at::kFloat && reduce != compute) continue;
          FullyShardOptions options = options_of(levels, compute);
          options.precision.reduce = reduce;
          SCOPED_TRACE(concat(compute, " on the wire ", reduce, " accumulation ", accumulation, " recompute ",
                              recompute));
          testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
            testing::expect_equal(testing::sharded(mesh, options,
                                                   {.accumulation = accumulation,
                                                    .recompute = recompute,
                                                    .same_samples = true,
                                                    .clip = false}),
                                  expected);
          });
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, SameSamples, ::testing::Combine(kLevels, ::testing::Values(1, 2, 4)), name_of);

// LibTorch's optimizers that treat elements alike, over shards.
struct Kind {
  const char* name;
  testing::MakeOptimizer make;
};

template <typename Optimizer, typename Options>
Kind kind(const char* name, const Options& options) {
  return {name, [options](std::vector<at::Tensor> parameters) -> std::unique_ptr<torch::optim::Optimizer> {
            return std::make_unique<Optimizer>(std::move(parameters), options);
          }};
}

std::vector<Kind> elementwise() {
  namespace optim = torch::optim;
  return {kind<optim::SGD>("SGD", optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01)),
          kind<optim::Adam>("Adam", optim::AdamOptions(1e-2).amsgrad(true).weight_decay(0.01)),
          kind<optim::AdamW>("AdamW", optim::AdamWOptions(1e-2).weight_decay(0.1)),
          kind<optim::RMSprop>("RMSprop", optim::RMSpropOptions(1e-2).momentum(0.9).centered(true)),
          kind<optim::Adagrad>("Adagrad", optim::AdagradOptions(1e-2).lr_decay(0.1).weight_decay(0.01))};
}

class AnyOptimizer : public ::testing::TestWithParam<Cell> {};

// Bitwise where no sum is reordered: the same samples on 2 ranks. Where every rank has its own, or a mean is
// of 3, the last bit of a gradient may differ, and where nearly nothing is left of one, the optimizers that
// divide by its size enlarge that.
TEST_P(AnyOptimizer, EqualsTheUnshardedModule) {
  const auto [levels, world] = GetParam();
  for (const Kind& optimizer : elementwise()) {
    SCOPED_TRACE(optimizer.name);
    const Result bitwise = testing::unsharded(at::kFloat, /*clip=*/false, optimizer.make);
    const Result expected = testing::unsharded(at::kFloat, /*clip=*/true, optimizer.make);
    ASSERT_NE(expected.values.front(), expected.values.at(expected.values.size() - 2)) << "it learns";
    testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
      const FullyShardOptions options = options_of(levels, at::kFloat);
      const Training same{.same_samples = true, .clip = false, .optimizer = optimizer.make};
      const Result with_the_same = testing::sharded(mesh, options, same);
      if (world == 2) testing::expect_equal(with_the_same, bitwise);
      testing::expect_close(with_the_same, bitwise, 1e-6);
      testing::expect_close(testing::sharded(mesh, options, {.optimizer = optimizer.make}), expected, 1e-6);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, AnyOptimizer, ::testing::Combine(kLevels, ::testing::Values(2, 3)), name_of);

}  // namespace
}  // namespace tessera
