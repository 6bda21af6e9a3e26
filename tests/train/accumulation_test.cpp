// SPDX-License-Identifier: Apache-2.0
// The sum of gradients over micro-batches is the big batch's: with SGD, whose step is as long as its
// gradient, a mean that is off by the number of micro-batches cannot hide (Adam's steps would).
#include "small_run.h"

namespace tessera::train {
namespace {

using Sets = std::vector<std::string>;

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
  // What was looked for would have been seen: twice the gradient is another training.
  Sets twice = kSgd;
  twice.emplace_back("optimizer.lr=0.2");
  EXPECT_GT(std::abs(train_layout(1, twice, 6).losses.back() - expected.losses.back()), 1e-3);
}

// The last step of an epoch has 24 samples in micro-batches of 3, 3 and 2: their means do not count alike.
TEST(Accumulation, OfMicroBatchesOfUnequalSizes) {
  Sets keep = kSgd;
  keep.insert(keep.end(), {"data.remainder=keep", "train.batch=36"});
  const Curve expected = train_layout(1, keep, 6);
  for (const auto& [world, accumulation] : std::vector<std::pair<int64_t, int64_t>>{{1, 3}, {3, 4}, {2, 6}}) {
    SCOPED_TRACE(concat(world, " ranks, accumulation ", accumulation));
    Sets sets = keep;
    sets.push_back(concat("train.accumulation=", accumulation));
    expect_same_training(train_layout(world, sets, 6), expected);
  }
}

}  // namespace
}  // namespace tessera::train
