// SPDX-License-Identifier: Apache-2.0
// Trainings whose blocks are cut over tensor groups: optimizers and the average of the weights against one
// rank.
#include "small_run.h"
#include "whole_state.h"

namespace tessera::train {
namespace {

struct CutTraining {
  Curve curve;
  WholeState state;
};

/// `tensor`: ranks that share a block. Blocks of three heads.
CutTraining train_cut(const std::string& optimizer, int64_t world, int64_t tensor, bool adjacent) {
  at::set_num_threads(1);
  const recipe::Recipe recipe = make_recipe({concat("optimizer.name=", optimizer), "model.width=48",
                                             "model.heads=3", "model.mlp_width=96", "ema.decay=0.9"});
  plan::Plan plan = make_plan(recipe, world);
  for (plan::UnitPlan& unit : plan.units)
    if (unit.name.starts_with("blocks.")) unit.layout = {tensor, adjacent};
  CutTraining result;
  testing::run_ranks(
      mesh_axes(recipe, make_plan(recipe, world)),
      [&](mesh::Mesh& mesh) {
        const auto state = assemble(recipe, plan, mesh, true);
        Curve curve;
        train_until(*state, mesh, 4, curve);
        add_state_of_all(*state, mesh, result.state);
        if (mesh.rank() == 0) result.curve = curve;
      },
      std::chrono::milliseconds(30'000), /*shared_memory=*/true, plan::spans_of(plan));
  return result;
}

class CutLayers : public ::testing::TestWithParam<std::string> {};

// As far from one rank as other layouts are (train.Hybrid).
TEST_P(CutLayers, TrainAsOneRank) {
  const CutTraining expected = train_cut(GetParam(), 1, 1, true);
  for (const auto& [world, tensor, adjacent] : {std::tuple{2, 2, true}, {4, 2, false}, {4, 4, true}}) {
    SCOPED_TRACE(concat(world, " ranks, ", tensor, adjacent ? " adjacent" : " strided"));
    const CutTraining found = train_cut(GetParam(), world, tensor, adjacent);
    expect_close(found.curve, expected.curve, 2e-5);
    ASSERT_EQ(found.state.tensors.size(), expected.state.tensors.size());
    for (const auto& [name, tensor_found] : found.state.tensors) {
      const at::Tensor& one = expected.state.tensors.at(name);
      EXPECT_EQ(partition_fault(found.state.regions.at(name), one.sizes().vec()), std::nullopt) << name;
      // A key's bias has no gradient but rounding, which Adam and Adafactor divide by its own size.
      if (!name.starts_with("ema/") || name.ends_with("qkv.bias")) continue;
      EXPECT_LE((tensor_found - one).abs().max().item<double>(), 1e-4) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, CutLayers,
                         ::testing::Values("adamw", "sgd", "lamb", "lars", "adafactor", "muon"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera::train
