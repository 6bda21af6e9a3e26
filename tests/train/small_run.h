// SPDX-License-Identifier: Apache-2.0
// A small ViT with dropout and drop-path on, trained for a few steps on ranks that are threads.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "../mesh/ranks.h"
#include "on_mesh.h"
#include "tessera/eager/session.h"
#include "tessera/eager/state.h"
#include "tessera/loop/loop.h"
#include "tessera/plan/spans.h"

namespace tessera::train {

constexpr const char* kRecipe = R"(
name = "layouts"
[model]
image_size = 16
patch_size = 8
channels = 3
width = 24
depth = 3
heads = 2
mlp_width = 40
classes = 7
drop_path = 0.3
dropout = 0.2
[data]
source = "fake:96"
workers = 1
[train]
batch = 48
steps = 6
seed = 5
clip = 0.05
label_smoothing = 0.1
[optimizer]
lr = 1e-2
[schedule]
warmup_steps = 2
[precision]
compute = "fp32"
)";

/// Arguments of --set: "KEY=VALUE".
using Sets = std::vector<std::string>;

inline Sets joined(Sets a, const Sets& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// With "model.family=resmlp" in `sets` the recipe has none of the keys that a ResMLP lacks.
inline recipe::Recipe make_recipe(const Sets& sets = {}) {
  std::string text = kRecipe;
  if (std::ranges::find(sets, "model.family=resmlp") != sets.end()) {
    for (const char* line : {"heads = 2\n", "dropout = 0.2\n"})
      text.erase(text.find(line), std::strlen(line));
  }
  return recipe::parse_recipe(text, "test", ".", sets);
}

constexpr const char* kResNetRecipe = R"(
name = "resnet"
[model]
family = "resnet"
block = "basic"
blocks = [1, 1]
base_width = 4
image_size = 32
classes = 5
[data]
source = "fake:96"
workers = 1
[train]
batch = 24
steps = 6
seed = 5
[optimizer]
lr = 1e-2
[schedule]
warmup_steps = 2
[precision]
compute = "fp32"
)";

/// A ResNet with two basic blocks: a model with buffers.
inline recipe::Recipe resnet_recipe(const Sets& sets = {}) {
  return recipe::parse_recipe(kResNetRecipe, "test", ".", sets);
}

using Parameters = std::map<std::string, at::Tensor>;

inline Parameters gather_parameters(TrainState& state) {
  Parameters whole;
  for (const auto& unit : state.sharded->units()) {
    unit->finish_gather();
    for (const auto& [name, tensor] : unit->parameters()) whole[name] = tensor.detach().clone();
    unit->release();
  }
  return whole;
}

/// Bitwise, but for those of the names in `but`.
inline void expect_equal(const Parameters& found, const Parameters& expected,
                         const std::vector<std::string>& but = {}) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    if (std::ranges::find(but, name) != but.end()) continue;
    EXPECT_TRUE(tensor.equal(found.at(name))) << name;
  }
}

/// Of the shards of all ranks, which may hold pieces of layers that are cut. Collective.
inline Parameters whole_parameters(TrainState& state, mesh::Mesh& mesh) {
  eager::Backend backend(state, mesh);
  const auto held = backend.state_to_load();
  const std::string prefix = "param/";
  Parameters whole;
  for (const arch::ParameterSpec& spec : arch::parameters(state.recipe.model))
    whole[spec.name] = at::zeros(spec.shape);
  for (const checkpoint::TensorShard& shard : held->shards()) {
    if (shard.replica || !shard.name.starts_with(prefix)) continue;
    at::Tensor& tensor = whole.at(shard.name.substr(prefix.size()));
    const at::Tensor values = at::from_blob(shard.data, {shard.region.numel()}, at::kFloat);
    for (const SharedRun& run : SharedRuns::in_tensor(shard.shape, shard.region))
      tensor.view({-1}).narrow(0, run.a, run.count).copy_(values.narrow(0, run.b, run.count));
  }
  for (auto& [name, tensor] : whole) mesh.world().sum(tensor, name);
  return whole;
}

inline bool has_cut_layers(const TrainState& state) {
  return std::ranges::any_of(state.plan.units, [](const plan::UnitPlan& unit) { return unit.is_cut(); });
}

/// All of the model's, in any layout. Collective.
inline Parameters parameters_of(TrainState& state, mesh::Mesh& mesh) {
  const bool in_pieces = state.pipeline || has_cut_layers(state);
  return in_pieces ? whole_parameters(state, mesh) : gather_parameters(state);
}

struct Curve {
  std::vector<double> losses, norms;
  Parameters parameters;
};

/// Trains from the state's step to `until`. `as_bytes`: on the CPU as well.
inline void train_until(TrainState& state, mesh::Mesh& mesh, int64_t until, Curve& curve,
                        bool as_bytes = false, std::vector<StepResult>* steps = nullptr) {
  const recipe::Recipe& recipe = state.recipe;
  const data::MixedSource mix = open_training(recipe);
  Log log(false);
  launch::Ranks ranks;
  ranks.rank = mesh.rank();
  ranks.world = mesh.world_size();
  data::LoaderOptions options = loader_options(recipe, ranks, 1, log);
  options.order.mix = mix.parts;
  const recipe::BatchSizes sizes = batch_sizes(recipe, state.plan);
  options.batch = sizes.batch;
  options.accumulation = sizes.accumulation;
  load_for(state.plan, &options);
  deliver_for(state.input->device(), &options);
  options.as_bytes = options.as_bytes || as_bytes;
  const recipe::StepCounts counts = recipe::count_steps(recipe, mix.source->size(), sizes.batch);
  data::TrainLoader loader(*mix.source, recipe.data.transform, options, state.step);
  while (state.step < until) {
    const double lr = recipe::learning_rate(recipe, counts, state.step);
    const StepResult step = train::train_step(state, loader, sizes, lr, {}, mesh);
    curve.losses.push_back(step.loss);
    curve.norms.push_back(step.gradient_norm);
    if (steps != nullptr) steps->push_back(step);
  }
  curve.parameters = parameters_of(state, mesh);
}

/// By step: what the head's last tensor is multiplied by in it, and in it alone; with infinity it is
/// infinite.
using Factors = std::map<int64_t, double>;

/// As train_until(), with steps whose numbers are bad on purpose.
inline void train_with_factors(TrainState& state, mesh::Mesh& mesh, int64_t until, const Factors& factors,
                               Curve& curve, bool as_bytes = false,
                               std::vector<StepResult>* steps = nullptr) {
  at::Tensor last = state.sharded->units().back()->shards().back().master;
  for (const auto& [step, factor] : factors) {
    train_until(state, mesh, step, curve, as_bytes, steps);
    const at::Tensor before = last.clone();
    last.mul_(factor).add_(std::isinf(factor) ? factor : 0.0);
    state.sharded->parameters_changed();
    train_until(state, mesh, step + 1, curve, as_bytes, steps);
    last.copy_(before);
    state.sharded->parameters_changed();
  }
  train_until(state, mesh, until, curve, as_bytes, steps);
}

/// Runs body(mesh, plan) on every rank, with the plan that the recipe asks for and its groups.
inline void run_plan_ranks(const recipe::Recipe& recipe, int64_t world,
                           const std::function<void(mesh::Mesh&, const plan::Plan&)>& body) {
  const plan::Plan plan = make_plan(recipe, world);
  mesh::ThreadRanks ranks{mesh_axes(recipe, plan), mesh_spans(recipe, plan)};
  ranks.timeout = std::chrono::seconds(30);
  ranks.links = plan::links_of(plan);
  mesh::run_on_thread_ranks(ranks, [&](mesh::Mesh& mesh) { body(mesh, plan); });
}

/// What happens to a state before its first step.
using Prepare = std::function<void(TrainState&, mesh::Mesh&)>;

inline Curve train_layout(int64_t world, const Sets& sets, int64_t steps, const Prepare& prepare = {}) {
  at::set_num_threads(1);
  Curve result;
  const recipe::Recipe recipe = make_recipe(sets);
  run_plan_ranks(recipe, world, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
    const auto state = assemble(recipe, plan, mesh, true);
    if (prepare) prepare(*state, mesh);
    Curve curve;
    train_until(*state, mesh, steps, curve);
    if (mesh.rank() == 0) result = curve;
  });
  return result;
}

/// Of the recipe's validation split. Collective.
inline Evaluation evaluate_validation(TrainState& state, mesh::Mesh& mesh, const EvaluateOptions& options) {
  const auto source = data::open_source(state.recipe.data.source, "val", source_options(state.recipe));
  Log log(false);
  return train::evaluate(state, *source, loader_options(state.recipe, launch::Ranks{}, 1, log), options,
                         mesh);
}

inline void expect_close(const Curve& a, const Curve& b, double tolerance) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (size_t i = 0; i < a.losses.size(); ++i) {
    EXPECT_NEAR(a.losses[i], b.losses[i], tolerance * b.losses[i]) << "loss of step " << i;
    EXPECT_NEAR(a.norms[i], b.norms[i], 20 * tolerance * b.norms[i]) << "gradient norm of step " << i;
  }
}

}  // namespace tessera::train
