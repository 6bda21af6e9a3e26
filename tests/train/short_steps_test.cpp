// SPDX-License-Identifier: Apache-2.0
// Steps and evaluations with fewer samples than a full batch, under layouts with tensor parallelism: ranks
// hold unequal numbers of samples, or none.
#include <algorithm>
#include <mutex>
#include <numeric>

#include "small_run.h"

namespace tessera::train {
namespace {

struct ShortLayout {
  int64_t world;
  Sets sets;
};

const std::vector<ShortLayout>& layouts() {
  static const std::vector<ShortLayout> all = {
      {4, {"parallel.tensor=4"}},
      {4, {"parallel.tensor=2", "parallel.tensor_adjacent=false", "train.accumulation=2"}},
      {3, {"parallel.tensor=3", "parallel.pieces=2", "shard.recompute=true"}},
      {4, {"shard.units=blocks.0=tensor2, blocks.1=tensor4+keep_sums, blocks.2=tensor2+strided"}},
      {8, {"parallel.tensor=4"}},
  };
  return all;
}

/// Two epochs of two steps of 24 samples and one of `left`.
Sets training(int64_t left, const Sets& more) {
  return joined({concat("data.source=fake:", 48 + left), "train.batch=24", "data.remainder=keep"}, more);
}

class ShortSteps : public ::testing::TestWithParam<int64_t> {};

TEST_P(ShortSteps, TrainAsOneRank) {
  const std::vector<Sets> kinds = {{"optimizer.name=sgd"},
                                   {"precision.compute=bf16", "train.mixup=0.8"},
                                   {"precision.compute=bf16", "precision.linear=fp8"}};
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    const Sets sets = training(GetParam(), kinds[kind]);
    const Curve expected = train_layout(1, sets, 6);
    for (size_t i = kind; i < layouts().size(); i += kind == 0 ? 1 : 2) {
      SCOPED_TRACE(concat("kind ", kind, ", layout ", i));
      const Curve found = train_layout(layouts()[i].world, joined(sets, layouts()[i].sets), 6);
      const double tolerance = kind == 0 ? 5e-6 : 2e-2;
      for (size_t step = 0; step < expected.losses.size(); ++step)
        EXPECT_NEAR(found.losses[step], expected.losses[step], tolerance * expected.losses[step]) << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Samples, ShortSteps, ::testing::Values(1, 5, 12),
                         ::testing::PrintToStringParamName());

/// Samples of each tensor group of block 0 in the pass that was last, by the group's first rank.
std::map<int64_t, int64_t> samples_by_group(const ShortLayout& layout, int64_t left) {
  at::set_num_threads(1);
  std::map<int64_t, int64_t> samples;
  std::mutex lock;
  const recipe::Recipe recipe = make_recipe(joined(training(left, {}), layout.sets));
  run_plan_ranks(recipe, layout.world, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
    const auto state = assemble(recipe, plan, mesh, true);
    Curve curve;
    train_until(*state, mesh, 3, curve);
    const auto& counts = state->context.tensor_groups.front().counts;
    const std::lock_guard one(lock);
    samples[plan::base_of(plan::tensor_span(plan, plan.units[1]), mesh.rank())] =
        std::accumulate(counts.begin(), counts.end(), int64_t{0});
  });
  return samples;
}

/// A rank without samples gives its group none to compute, and groups have equally many.
TEST(ShortStep, TensorGroupsComputeItsSamplesAlone) {
  EXPECT_EQ(samples_by_group(layouts()[0], 1), (std::map<int64_t, int64_t>{{0, 1}}));
  EXPECT_EQ(samples_by_group(layouts()[4], 12), (std::map<int64_t, int64_t>{{0, 6}, {4, 6}}));
  EXPECT_EQ(samples_by_group(layouts()[4], 1), (std::map<int64_t, int64_t>{{0, 1}, {4, 0}}));
}

/// Counts and losses of an evaluation do not depend on which rank has the last samples.
TEST(ShortEvaluation, CountsEverySampleOnce) {
  at::set_num_threads(1);
  const auto evaluated = [](int64_t world, const Sets& sets) {
    Evaluation result;
    const recipe::Recipe recipe = make_recipe(joined(sets, {"data.source=fake:44"}));
    run_plan_ranks(recipe, world, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
      const auto state = assemble(recipe, plan, mesh, false);
      const Evaluation found = evaluate_validation(*state, mesh, {.batch = 4});
      if (mesh.rank() == 0) result = found;
    });
    return result;
  };
  const Evaluation expected = evaluated(1, {});
  for (const ShortLayout& layout : layouts()) {
    const Evaluation found = evaluated(layout.world, layout.sets);
    EXPECT_EQ(found.metrics.samples, expected.metrics.samples);
    EXPECT_NEAR(found.metrics.loss, expected.metrics.loss, 1e-6);
    EXPECT_EQ(found.figures.confusion, expected.figures.confusion);
  }
}

}  // namespace
}  // namespace tessera::train
