// SPDX-License-Identifier: Apache-2.0
// Batches that are no multiple of ranks and micro-batches, and batches smaller than the ranks: the numbers of
// one rank.
#include <ostream>

#include "small_run.h"
#include "tessera/train/compare_layouts.h"

namespace tessera::train {
namespace {

struct BatchCut {
  const char* name;
  int64_t world;
  Sets sets;
};

const std::vector<BatchCut> kBatchCuts = {
    {"one_rank_accumulation_2", 1, {"train.accumulation=2"}},
    {"data_2", 2, {}},
    {"data_2_accumulation_2", 2, {"train.accumulation=2", "shard.level=zero1"}},
    {"data_4_replicate", 4, {"shard.level=replicate"}},
    {"data_4_zero3_accumulation_2", 4, {"shard.level=zero3", "train.accumulation=2", "shard.recompute=true"}},
    {"tensor_2", 2, {"parallel.tensor=2"}},
    {"tensor_4", 4, {"parallel.tensor=4"}},
    {"tensor_2_strided_data_2_accumulation_2",
     4,
     {"parallel.tensor=2", "parallel.tensor_adjacent=false", "train.accumulation=2"}},
    {"mixed", 4, {"shard.units=blocks.0=tensor2, blocks.1=tensor4+keep_sums, blocks.2=zero3"}},
    {"pipeline_2", 2, {"parallel.pipeline=2", "parallel.micro_batches=2"}},
    {"pipeline_2_data_2", 4, {"parallel.pipeline=2", "parallel.micro_batches=2", "shard.level=zero3"}},
    {"pipeline_2_tensor_2", 4, {"parallel.pipeline=2", "parallel.tensor=2", "parallel.micro_batches=2"}},
    {"pipeline_2_chosen_micro_batches_data_2", 4, {"parallel.pipeline=2"}},
};

struct BatchCase {
  int64_t batch;
  BatchCut cut;
  std::string name() const { return concat(cut.name, "_batch_", batch); }
  friend std::ostream& operator<<(std::ostream& out, const BatchCase& one) { return out << one.name(); }
  Sets training() const {
    return {concat("train.batch=", batch), "optimizer.name=sgd", "optimizer.lr=0.1",
            "schedule.warmup_steps=0"};
  }
  Sets layout() const {
    Sets all = training();
    all.insert(all.end(), cut.sets.begin(), cut.sets.end());
    return all;
  }
};

std::vector<BatchCase> batch_cases() {
  std::vector<BatchCase> cases;
  for (const BatchCut& cut : kBatchCuts) {
    for (const int64_t batch : {1, 3, 5}) cases.push_back({batch, cut});
  }
  return cases;
}

class AnyBatch : public ::testing::TestWithParam<BatchCase> {};

// Samples, every segment's outputs, every gradient, the weights after each of two steps: 1e-11.
TEST_P(AnyBatch, ComputesInFloat64WhatOneRankDoes) {
  const BatchCase& one = GetParam();
  at::set_num_threads(1);
  const auto layout_of = [](int64_t world, const Sets& sets) {
    const recipe::Recipe recipe = make_recipe(sets);
    return Layout{concat("ranks=", world), recipe, make_plan(recipe, world)};
  };
  CompareOptions options;
  options.float64 = true;
  options.steps = 2;
  Log log(false);
  const LayoutComparison found =
      compare_layouts(layout_of(1, one.training()), layout_of(one.cut.world, one.layout()), options, log);
  for (const TensorDifference& tensor : found.report.tensors)
    EXPECT_FALSE(tensor.differs) << tensor.title << ": " << tensor.a << " and " << tensor.b << tensor.fault;
  EXPECT_GT(found.report.tensors.size(), 100U);
  EXPECT_TRUE(found.notes.empty()) << found.notes.front();
}

TEST_P(AnyBatch, TrainsAsOneRank) {
  const BatchCase& one = GetParam();
  const Curve expected = train_layout(1, one.training(), 4);
  const Curve found = train_layout(one.cut.world, one.layout(), 4);
  expect_close(found, expected, 1e-5);
  for (const auto& [name, wanted] : expected.parameters) {
    const double difference = (found.parameters.at(name) - wanted).abs().max().item<double>();
    EXPECT_LE(difference, 1e-5 * wanted.abs().max().item<double>() + 1e-7) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, AnyBatch, ::testing::ValuesIn(batch_cases()),
                         [](const auto& info) { return info.param.name(); });

}  // namespace
}  // namespace tessera::train
