// SPDX-License-Identifier: Apache-2.0
// The sum of gradients over micro-batches is the big batch's: with SGD, whose step is as long as its
// gradient, a mean that is off by the number of micro-batches cannot hide (Adam's steps would).
#include "small_run.h"

namespace tessera::train {
namespace {

/// Parameters as well as losses: the largest difference of a tensor, as a share of its largest value.
void expect_same_training(const Curve& found, const Curve& expected) {
  expect_close(found, expected, 5e-6);
  for (const auto& [name, wanted] : expected.parameters) {
    const double difference = (found.parameters.at(name) - wanted).abs().max().item<double>();
    EXPECT_LE(difference, 5e-6 * wanted.abs().max().item<double>()) << name;
  }
}

const Sets kSgd = {"optimizer.name=sgd", "optimizer.momentum=0.9", "optimizer.lr=0.1", "train.clip=0",
                   "schedule.warmup_steps=0"};

TEST(Accumulation, WithSgdGivesTheBigBatchsResult) {
  const Curve expected = train_layout(1, kSgd, 6);
  for (const auto& [world, accumulation] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 2}, {1, 4}, {1, 48}, {2, 1}, {2, 3}, {3, 4}, {4, 2}}) {
    SCOPED_TRACE(concat(world, " ranks, accumulation ", accumulation));
    Sets sets = kSgd;
    sets.push_back(concat("train.accumulation=", accumulation));
    expect_same_training(train_layout(world, sets, 6), expected);
  }
  for (const auto& [world, accumulation] :
       std::vector<std::pair<int64_t, int64_t>>{{2, 3}, {4, 2}, {4, 12}}) {
    SCOPED_TRACE(concat("tensor groups, ", world, " ranks, accumulation ", accumulation));
    Sets sets = kSgd;
    sets.insert(sets.end(), {"parallel.tensor=2", concat("train.accumulation=", accumulation)});
    expect_same_training(train_layout(world, sets, 6), expected);
  }
  // What was looked for would have been seen: twice the gradient is another training.
  Sets twice = kSgd;
  twice.emplace_back("optimizer.lr=0.2");
  EXPECT_GT(std::abs(train_layout(1, twice, 6).losses.back() - expected.losses.back()), 1e-3);
}

// 40 samples in micro-batches of 14, 13 and 13; of 12, 12, 9 and 7; and the 16 of an epoch's last step: their
// means do not count alike.
TEST(Accumulation, OfMicroBatchesOfUnequalSizes) {
  Sets keep = kSgd;
  keep.insert(keep.end(), {"data.remainder=keep", "train.batch=40"});
  const Curve expected = train_layout(1, keep, 6);
  for (const auto& [world, accumulation] : std::vector<std::pair<int64_t, int64_t>>{{1, 3}, {3, 4}, {2, 6}}) {
    SCOPED_TRACE(concat(world, " ranks, accumulation ", accumulation));
    Sets sets = keep;
    sets.push_back(concat("train.accumulation=", accumulation));
    expect_same_training(train_layout(world, sets, 6), expected);
    if (world == 1) continue;
    sets.push_back(concat("parallel.tensor=", world));
    expect_same_training(train_layout(world, sets, 6), expected);
  }
}

// As a pipeline orders them: the second micro-batch goes forward before the first goes back. What is run
// again for the first must have the first's masks, not those of the batch that was there last.
TEST(Accumulation, AMicroBatchThatRunsAgainSeesItsOwnMasks) {
  at::set_num_threads(1);
  const auto gradients = [](const char* recompute) {
    std::vector<at::Tensor> found;
    testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
      const recipe::Recipe recipe = make_recipe({concat("shard.recompute=", recompute)});
      const auto state = assemble(recipe, make_plan(recipe, 1), mesh, true);
      const auto logits_of = [&](uint64_t first) {
        data::Batch batch = placeholder_batch(*state);
        batch.size = 4;
        batch.images.assign(4 * batch.images.size(), 0.0F);
        for (size_t i = 0; i < batch.images.size(); ++i)
          batch.images[i] = std::sin(static_cast<float>(i + 100 * first));
        batch.samples = {first, first + 1, first + 2, first + 3};
        return forward(*state, batch, /*training=*/true, /*key=*/first);
      };
      const at::Tensor one = logits_of(1), two = logits_of(5);
      state->sharded->backward(one.square().sum(), /*last=*/false);
      state->sharded->backward(two.square().sum(), /*last=*/true);
      for (const auto& unit : state->sharded->units()) found.push_back(unit->gradient().clone());
    });
    return found;
  };
  const auto expected = gradients("false"), found = gradients("true");
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    const double largest = expected[i].abs().max().item<double>();
    EXPECT_GT(largest, 0) << i;
    EXPECT_LE((found[i] - expected[i]).abs().max().item<double>(), 1e-6 * largest) << i;
  }
}

}  // namespace
}  // namespace tessera::train
