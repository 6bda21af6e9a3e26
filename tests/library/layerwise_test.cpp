// SPDX-License-Identifier: Apache-2.0
// LAMB and LARS over shards against their formulas over whole tensors.
#include "tessera/library/layerwise.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <functional>
#include <map>

#include "../error_text.h"
#include "../mesh/ranks.h"
#include "../shard/foreign_net.h"

namespace tessera {
namespace {

using library::Lamb, library::LambOptions, library::Lars, library::LarsOptions;
using shard::FullyShardOptions, shard::Level, shard::ShardedModule, shard::UnitOptions;
using testing::ForeignNet;
using torch::optim::OptimizerParamGroup;
using Parameters = std::map<std::string, at::Tensor>;

constexpr int kSteps = 50;
constexpr double kLr = 0.02, kDecay = 0.05, kTrust = 0.1, kMomentum = 0.8;

at::Tensor loss_of(ForeignNet& net) {
  return net.forward(at::arange(12).remainder(11), testing::normal("extra", {12, 3})).square().mean();
}

void prepare(ForeignNet& net, at::ScalarType dtype) {
  testing::set_values(net);
  net.eval();
  net.to(dtype);
}

/// In float32 LAMB enlarges what rounding leaves of gradients that are nearly zero: there they are given.
at::Tensor given_gradient(const std::string& name, at::IntArrayRef shape, int t) {
  return testing::normal(concat(name, " ", t), shape);
}

double ratio_or_one(bool adapt, double above, double below) {
  return adapt && above > 0 && below > 0 ? above / below : 1.0;
}

double norm_of(const at::Tensor& tensor) { return tensor.to(at::kDouble).norm().item<double>(); }

/// One step for one whole tensor, as the papers write it. Vectors are neither decayed nor adapted.
using Formula = std::function<void(at::Tensor w, const at::Tensor& g, std::vector<at::Tensor>& state, int t)>;

void lamb_formula(at::Tensor w, const at::Tensor& g, std::vector<at::Tensor>& state, int t) {
  if (state.empty()) state = {at::zeros_like(w), at::zeros_like(w)};
  const bool matrix = w.dim() > 1;
  at::Tensor &m = state[0], &v = state[1];
  m = 0.9 * m + (1 - 0.9) * g;
  v = 0.999 * v + (1 - 0.999) * g * g;
  at::Tensor u = m / (1 - std::pow(0.9, t)) / ((v / (1 - std::pow(0.999, t))).sqrt() + 1e-6);
  if (matrix) u = u + kDecay * w;
  w.sub_(u, kLr * ratio_or_one(matrix, norm_of(w), norm_of(u)));
}

void lars_formula(at::Tensor w, const at::Tensor& g, std::vector<at::Tensor>& state, int) {
  if (state.empty()) state = {at::zeros_like(w)};
  const bool matrix = w.dim() > 1;
  const double decay = matrix ? kDecay : 0, norm = norm_of(w), slope = norm_of(g);
  const double ratio = matrix && norm > 0 && slope > 0 ? kTrust * norm / (slope + decay * norm) : 1.0;
  state[0] = kMomentum * state[0] + kLr * ratio * (g + decay * w);
  w.sub_(state[0]);
}

Parameters by_formula(const Formula& formula, at::ScalarType dtype) {
  ForeignNet net;
  prepare(net, dtype);
  std::map<std::string, std::vector<at::Tensor>> states;
  for (int t = 1; t <= kSteps; ++t) {
    net.zero_grad();
    if (dtype == at::kDouble) loss_of(net).backward();
    const at::NoGradGuard no_grad;
    for (auto& entry : net.named_parameters()) {
      if (dtype == at::kFloat && entry.value().requires_grad()) {
        entry.value().mutable_grad() = given_gradient(entry.key(), entry.value().sizes(), t);
      }
      if (entry.value().grad().defined())
        formula(entry.value(), entry.value().grad(), states[entry.key()], t);
    }
  }
  Parameters whole;
  for (auto& entry : net.named_parameters())
    whole[entry.key()] = entry.value().detach().to(at::kDouble).clone();
  return whole;
}

/// Matrices, then the rest, which is neither decayed nor adapted.
template <typename Options>
std::vector<OptimizerParamGroup> groups_of(const ShardedModule& sharded, Options options) {
  std::vector<at::Tensor> matrices, others;
  for (const auto& shard : sharded.shards()) {
    if (shard.trainable) (shard.shape.size() > 1 ? matrices : others).push_back(shard.values);
  }
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(matrices, std::make_unique<Options>(options));
  groups.emplace_back(others, std::make_unique<Options>(options.weight_decay(0).adapt(false)));
  return groups;
}

std::unique_ptr<torch::optim::Optimizer> make(const std::string& kind, ShardedModule& sharded) {
  if (kind == "lamb") {
    return std::make_unique<Lamb>(sharded, groups_of(sharded, LambOptions(kLr).weight_decay(kDecay)));
  }
  const auto options = LarsOptions(kLr).weight_decay(kDecay).trust(kTrust).momentum(kMomentum);
  return std::make_unique<Lars>(sharded, groups_of(sharded, options), options);
}

Parameters by_shards(const std::string& kind, mesh::Mesh& mesh, Level level, at::ScalarType dtype) {
  auto net = std::make_shared<ForeignNet>();
  prepare(*net, dtype);
  FullyShardOptions options;
  options.policy = [level](const std::string&, torch::nn::Module&, int64_t numel) {
    return numel > 0 ? std::optional(UnitOptions{.level = level}) : std::nullopt;
  };
  options.root.level = level;
  ShardedModule sharded(net, mesh, options);
  const auto optimizer = make(kind, sharded);
  for (int t = 1; t <= kSteps; ++t) {
    optimizer->zero_grad();
    if (dtype == at::kDouble) sharded.forward([&] { return loss_of(*net); }).backward();
    for (const auto& shard : sharded.shards()) {
      if (dtype == at::kDouble || !shard.trainable) continue;
      at::Tensor values = shard.values;
      values.mutable_grad() =
          given_gradient(shard.name, shard.shape, t).view({-1}).slice(0, shard.begin, shard.end).clone();
    }
    optimizer->step();
  }
  sharded.parameters_changed();
  Parameters whole;
  sharded.with_full_parameters([&] {
    for (auto& entry : net->named_parameters())
      whole[entry.key()] = entry.value().detach().to(at::kDouble).clone();
  });
  return whole;
}

double distance(const Parameters& a, const Parameters& b) {
  double worst = 0;
  for (const auto& [name, value] : b) {
    if (value.numel() == 0) continue;
    const double difference = (a.at(name) - value).abs().max().item<double>();
    worst = std::max(worst, difference / value.abs().max().item<double>());
  }
  return worst;
}

class Layerwise : public ::testing::TestWithParam<std::string> {};

TEST_P(Layerwise, IsItsFormulaOver50Steps) {
  const Formula formula = GetParam() == "lamb" ? lamb_formula : lars_formula;
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    const Parameters expected = by_formula(formula, dtype);
    ForeignNet start;
    prepare(start, dtype);
    Parameters initial;
    for (auto& entry : start.named_parameters())
      initial[entry.key()] = entry.value().detach().to(at::kDouble);
    EXPECT_GT(distance(initial, expected), 0.05) << "it moves";
    for (const int64_t world : {1, 2, 3}) {
      for (const Level level : {Level::kZero3, Level::kReplicate}) {
        if (world == 1 && level != Level::kZero3) continue;
        testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
          const double found = distance(by_shards(GetParam(), mesh, level, dtype), expected);
          EXPECT_LE(found, dtype == at::kDouble ? 1e-10 : 1e-6)
              << dtype << " " << world << " ranks, " << plan::to_string(level);
        });
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Layerwise, ::testing::Values("lamb", "lars"),
                         [](const auto& info) { return info.param; });

TEST(LayerwiseTraffic, OneAllReduceAStep) {
  for (const char* kind : {"lamb", "lars"}) {
    testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
      auto net = std::make_shared<ForeignNet>();
      ShardedModule sharded(net, mesh);
      const auto optimizer = make(kind, sharded);
      sharded.forward([&] { return loss_of(*net); }).backward();
      const auto all_reduces = [&] {
        const auto& traffic = mesh.world().traffic();
        const auto found = traffic.find("all_reduce");
        return found == traffic.end() ? 0 : found->second.calls;
      };
      const int64_t before = all_reduces();
      optimizer->step();
      EXPECT_EQ(all_reduces() - before, 1) << kind;
    });
  }
}

TEST(LayerwiseErrors, NameWhatIsNotAShard) {
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    ShardedModule sharded(std::make_shared<ForeignNet>(), mesh);
    std::vector<OptimizerParamGroup> groups;
    groups.emplace_back(sharded.parameters());
    groups.emplace_back(std::vector<at::Tensor>{at::ones({3})});
    EXPECT_EQ(error_text([&] { Lamb(sharded, groups); }),
              "[library.layerwise] parameter group 1 has a tensor of 3 elements that is not one of "
              "ShardedModule::parameters(): expected the tensors of parameters() themselves");
    // LibTorch's schedulers set the rate through the options.
    Lamb lamb(sharded);
    lamb.param_groups()[0].options().set_lr(0.5);
    EXPECT_EQ(lamb.param_groups()[0].options().get_lr(), 0.5);
  });
}

}  // namespace
}  // namespace tessera
