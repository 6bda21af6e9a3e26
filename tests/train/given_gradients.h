// SPDX-License-Identifier: Apache-2.0
// A small model whose gradients are given by a formula, stepped by an optimizer on ranks that are threads.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "../mesh/ranks.h"
#include "../models/formula.h"
#include "tessera/base/error.h"
#include "tessera/optim/optimizer.h"
#include "tessera/recipe/recipe.h"
#include "tessera/shard/sharded_model.h"

namespace tessera::train {

struct GivenParameter {
  const char* unit;
  const char* name;
  std::vector<int64_t> shape;
  bool matrix;
};

/// Vectors, tokens, matrices both ways round, convolutions; the same in make_optimizer_fixture.py.
inline const std::vector<GivenParameter>& given_parameters() {
  static const std::vector<GivenParameter> parameters = {
      {"stem", "pos_embed", {1, 5, 8}, false},
      {"stem", "patch_embed.proj.weight", {36, 3, 2, 33}, true},
      {"stem", "patch_embed.proj.bias", {36}, false},
      {"blocks.0", "blocks.0.norm1.weight", {40}, false},
      {"blocks.0", "blocks.0.attn.qkv.weight", {48, 33}, true},
      {"blocks.0", "blocks.0.attn.qkv.bias", {48}, false},
      {"blocks.0", "blocks.0.mlp.fc1.weight", {33, 64}, true},
      {"blocks.0", "blocks.0.conv.weight", {6, 5, 3, 3}, true},
      {"head", "head.weight", {7, 33}, true},
      {"head", "head.bias", {7}, false},
  };
  return parameters;
}

inline int64_t numel_of(const GivenParameter& parameter) {
  int64_t numel = 1;
  for (const int64_t size : parameter.shape) numel *= size;
  return numel;
}

/// [numel] float32 in [-1/2, 1/2).
inline at::Tensor start_value(const GivenParameter& parameter) {
  return models::formula::uniform(parameter.name, numel_of(parameter)) * 0.5;
}

/// [numel] float32 in [-1/8, 1/8); of step 1, 2, ...
inline at::Tensor given_gradient(const GivenParameter& parameter, int64_t step) {
  return models::formula::uniform(concat(parameter.name, "/", step), numel_of(parameter)) * 0.125;
}

constexpr int64_t kGivenSteps = 50;

/// As a schedule would: it falls from `lr` to half of it.
inline double given_rate(double lr, int64_t step) { return lr * (1 - 0.01 * static_cast<double>(step - 1)); }

inline recipe::OptimizerRecipe optimizer_recipe(const std::vector<std::string>& sets) {
  std::vector<std::string> all = {"train.steps=1"};
  all.insert(all.end(), sets.begin(), sets.end());
  return recipe::parse_recipe("", "test", "/", all).optimizer;
}

/// The keys that give each optimizer of make_optimizer_fixture.py.
inline std::vector<std::string> optimizer_keys(const std::string& name) {
  static const std::map<std::string, std::vector<std::string>> keys = {
      {"lamb", {"optimizer.lr=0.02", "optimizer.epsilon=1e-6", "optimizer.weight_decay=0.05"}},
      {"lars",
       {"optimizer.lr=0.5", "optimizer.weight_decay=0.02", "optimizer.nesterov=true",
        "optimizer.trust=0.02"}},
      {"lion", {"optimizer.lr=1e-3", "optimizer.weight_decay=0.1"}},
      {"adafactor", {"optimizer.lr=0.01", "optimizer.weight_decay=0.1"}},
      {"muon", {"optimizer.lr=0.01", "optimizer.weight_decay=0.1"}},
  };
  auto sets = keys.at(name);
  sets.push_back("optimizer.name=" + name);
  return sets;
}

using Values = std::map<std::string, at::Tensor>;

/// Gathers unit after unit, so every rank calls it.
inline Values whole_parameters(shard::ShardedModel& model) {
  Values whole;
  for (const auto& unit : model.units()) {
    unit->finish_gather();
    for (const auto& [name, tensor] : unit->parameters()) whole[name] = tensor.detach().clone();
    unit->release();
  }
  return whole;
}

inline std::unique_ptr<shard::ShardedModel> given_model(mesh::Mesh& mesh, plan::Level level) {
  plan::Plan plan;
  plan.world = mesh.world_size();
  std::vector<shard::ShardedSegment> segments;
  for (const GivenParameter& parameter : given_parameters()) {
    if (segments.empty() || segments.back().name != parameter.unit) {
      segments.push_back({parameter.unit, {}, {}});
      plan.units.push_back({parameter.unit, level});
    }
    segments.back().parameters.tensors.emplace_back(parameter.name,
                                                    at::empty(parameter.shape).set_requires_grad(true));
  }
  return std::make_unique<shard::ShardedModel>(std::move(segments), plan, shard::Precision{}, mesh);
}

/// Calls `body` with every shard and its parameter.
template <typename Body>
void over_pieces(const shard::ShardedModel& model, const Body& body) {
  size_t next = 0;
  for (const auto& unit : model.units()) {
    for (const shard::Shard& shard : unit->shards()) {
      const GivenParameter& parameter = given_parameters().at(next++);
      TESSERA_CHECK_EQ(shard.name, std::string(parameter.name));
      body(shard, parameter);
    }
  }
}

inline void put_part(at::Tensor to, const at::Tensor& whole, const shard::Shard& shard) {
  const Region& region = shard.regions.at(0);
  to.copy_(whole.narrow(0, region.begin, region.numel()));
}

/// Whole parameters after kGivenSteps.
inline Values train_given(int64_t world, plan::Level level, const std::vector<std::string>& sets,
                          double grad_scale = 1) {
  at::set_num_threads(1);
  const at::NoGradGuard no_grad;
  Values result;
  const recipe::OptimizerRecipe options = optimizer_recipe(sets);
  testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
    const at::NoGradGuard no_grad_here;
    const auto model = given_model(mesh, level);
    over_pieces(*model, [](const shard::Shard& shard, const GivenParameter& parameter) {
      put_part(shard.master, start_value(parameter), shard);
    });
    std::vector<ModelParameter> parameters;
    for (const auto& parameter : given_parameters()) {
      const auto unit =
          std::ranges::find(model->units(), parameter.unit, [](const auto& u) { return u->name(); });
      const auto before = unit - model->units().begin();
      const auto after = static_cast<int64_t>(model->units().size()) - 1 - before;
      parameters.push_back({parameter.name, parameter.matrix, before, after});
    }
    Optimizer optimizer(*model, options, parameters, mesh);
    for (int64_t step = 1; step <= kGivenSteps; ++step) {
      for (const auto& unit : model->units()) unit->hold_gradient();
      over_pieces(*model, [&](const shard::Shard& shard, const GivenParameter& parameter) {
        put_part(shard.gradient, given_gradient(parameter, step) / grad_scale, shard);
      });
      optimizer.step(given_rate(options.lr, step), grad_scale);
      model->parameters_changed();
    }
    const Values whole = whole_parameters(*model);
    if (mesh.rank() == 0) result = whole;
  });
  return result;
}

/// The largest difference of a tensor, as a share of its largest value.
inline double distance(const Values& found, const Values& expected) {
  double worst = 0;
  for (const auto& [name, value] : expected) {
    const double difference = (found.at(name) - value).abs().max().item<double>();
    worst = std::max(worst, difference / value.abs().max().item<double>());
  }
  return worst;
}

}  // namespace tessera::train
