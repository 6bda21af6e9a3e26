// SPDX-License-Identifier: Apache-2.0
// Every optimizer over 50 steps of given gradients: against PyTorch's own here, and the same on any ranks.
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "given_gradients.h"

namespace tessera::train {
namespace {

/// What LibTorch's optimizer makes of the same gradients, without shards.
template <typename TorchOptimizer, typename Options>
Values by_torch(Options options, double weight_decay) {
  std::vector<at::Tensor> parameters, matrices, others;
  for (const auto& given : given_parameters()) {
    parameters.push_back(start_value(given).view(given.shape).clone().set_requires_grad(true));
    (given.matrix ? matrices : others).push_back(parameters.back());
  }
  const double lr = options.lr();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, std::make_unique<Options>(Options(options).weight_decay(weight_decay)));
  groups.emplace_back(others, std::make_unique<Options>(Options(options).weight_decay(0)));
  TorchOptimizer optimizer(groups, options);
  for (int64_t step = 1; step <= kGivenSteps; ++step) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto& given = given_parameters()[i];
      parameters[i].mutable_grad() = given_gradient(given, step).view(given.shape);
    }
    for (auto& group : optimizer.param_groups()) group.options().set_lr(given_rate(lr, step));
    optimizer.step();
  }
  Values values;
  for (size_t i = 0; i < parameters.size(); ++i) values[given_parameters()[i].name] = parameters[i].detach();
  return values;
}

TEST(Optimizers, SgdIsPyTorchs) {
  using torch::optim::SGDOptions;
  const auto torchs = [](double momentum, bool nesterov) {
    return by_torch<torch::optim::SGD>(SGDOptions(0.05).momentum(momentum).nesterov(nesterov), 0.02);
  };
  const std::vector<std::string> sgd = {"optimizer.name=sgd", "optimizer.lr=0.05",
                                        "optimizer.weight_decay=0.02"};
  const auto with = [&](std::vector<std::string> sets, double grad_scale = 1) {
    sets.insert(sets.begin(), sgd.begin(), sgd.end());
    return train_given(1, plan::Level::kZero3, sets, grad_scale);
  };
  EXPECT_LE(distance(with({}), torchs(0.9, false)), 1e-6);
  EXPECT_LE(distance(with({"optimizer.nesterov=true"}), torchs(0.9, true)), 1e-6);
  EXPECT_LE(distance(with({"optimizer.momentum=0"}), torchs(0, false)), 1e-6);
  EXPECT_LE(distance(with({"optimizer.momentum=0.5"}, 0.25), torchs(0.5, false)), 1e-6);
  EXPECT_GT(distance(with({}), torchs(0.9, true)), 1e-3);
}

TEST(Optimizers, AdamAndAdamWArePyTorchs) {
  using torch::optim::AdamOptions, torch::optim::AdamWOptions;
  const std::vector<std::string> keys = {"optimizer.lr=0.01", "optimizer.weight_decay=0.1",
                                         "optimizer.beta2=0.95"};
  const auto ours = [&](const char* name) {
    auto sets = keys;
    sets.push_back(concat("optimizer.name=", name));
    return train_given(1, plan::Level::kZero3, sets);
  };
  const auto betas = std::make_tuple(0.9, 0.95);
  const Values adam = by_torch<torch::optim::Adam>(AdamOptions(0.01).betas(betas), 0.1);
  const Values adamw = by_torch<torch::optim::AdamW>(AdamWOptions(0.01).betas(betas), 0.1);
  EXPECT_LE(distance(ours("adam"), adam), 1e-6);
  EXPECT_LE(distance(ours("adamw"), adamw), 1e-6);
  EXPECT_GT(distance(adam, adamw), 1e-3);
}

class Fixture : public ::testing::TestWithParam<std::string> {};

// timm 1.0.31, LAMB in float64, and of PyTorch 2.11 Muon, in float32.
TEST_P(Fixture, IsTimmsOrPyTorchs) {
  const auto fixture = nlohmann::json::parse(
      std::ifstream(std::string(TESSERA_SOURCE_DIR) + "/tests/train/fixtures/optimizers.json"));
  const int64_t every = fixture.at("every");
  const Values found = train_given(1, plan::Level::kZero3, optimizer_keys(GetParam()), 0.5);
  double worst = 0, moved = 0;
  for (const auto& given : given_parameters()) {
    const auto expected = fixture.at("optimizers").at(GetParam()).at(given.name).get<std::vector<double>>();
    const at::Tensor start = start_value(given), end = found.at(given.name).view({-1});
    ASSERT_EQ(static_cast<int64_t>(expected.size()), (numel_of(given) + every - 1) / every);
    const double largest = end.abs().max().item<double>();
    double difference = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto at = static_cast<int64_t>(i) * every;
      difference = std::max(difference, std::abs(end[at].item<double>() - expected[i]));
      moved = std::max(moved, std::abs(start[at].item<double>() - expected[i]));
    }
    worst = std::max(worst, difference / largest);
  }
  EXPECT_GT(moved, 0.01);
  EXPECT_LE(worst, GetParam() == "muon" ? 1e-3 : 1e-6);
  std::printf("%s: largest difference %.2g\n", GetParam().c_str(), worst);
}

// Norms, rows and columns are sums over ranks; a matrix is orthogonalised by one of them.
TEST_P(Fixture, IsTheSameOnAnyRanks) {
  const Values expected = train_given(1, plan::Level::kZero3, optimizer_keys(GetParam()), 0.5);
  double worst = 0;
  for (const auto& [world, level] :
       {std::pair{2, plan::Level::kZero3}, {3, plan::Level::kZero1}, {2, plan::Level::kReplicate}}) {
    worst = std::max(worst, distance(train_given(world, level, optimizer_keys(GetParam()), 0.5), expected));
  }
  EXPECT_LE(worst, GetParam() == "muon" ? 1e-5 : GetParam() == "lion" ? 0 : 1e-6);
  std::printf("%s: largest difference between layouts %.2g\n", GetParam().c_str(), worst);
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Fixture, ::testing::Values("lamb", "lars", "lion", "adafactor", "muon"),
                         [](const auto& info) { return info.param; });

class AnyRanks : public ::testing::TestWithParam<std::vector<std::string>> {};

// Bit by bit: no number of a parameter knows of another.
TEST_P(AnyRanks, AreBitwiseOneRank) {
  const Values expected = train_given(1, plan::Level::kZero3, GetParam(), 0.5);
  for (const auto& [world, level] :
       {std::pair{2, plan::Level::kZero3}, {3, plan::Level::kZero1}, {2, plan::Level::kReplicate}}) {
    const Values found = train_given(world, level, GetParam(), 0.5);
    for (const auto& [name, value] : expected) {
      EXPECT_TRUE(value.equal(found.at(name))) << name << " on " << world << ", " << plan::to_string(level);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Elementwise, AnyRanks,
    ::testing::Values(std::vector<std::string>{"optimizer.name=adamw"},
                      std::vector<std::string>{"optimizer.name=adam", "optimizer.weight_decay=0.1"},
                      std::vector<std::string>{"optimizer.name=sgd", "optimizer.weight_decay=0.1",
                                               "optimizer.nesterov=true"}),
    [](const auto& info) { return info.param[0].substr(std::string("optimizer.name=").size()); });

}  // namespace
}  // namespace tessera::train
