#include "tessera/shard/sharded_model.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "../mesh/ranks.h"
#include "tessera/base/random.h"

namespace tessera {
namespace {

using plan::Level;
using shard::NamedTensor;
using shard::Part;
using shard::ShardedModel;

constexpr int64_t kWidth = 7, kDepth = 3, kClasses = 5, kBatch = 12;

/// A small residual net of odd sizes, so that no shard boundary falls on a parameter's.
std::vector<Part> make_parts() {
  std::vector<Part> parts;
  const auto parameter = [](at::IntArrayRef shape) { return at::zeros(shape).requires_grad_(true); };
  const auto add = [&](const std::string& name, int64_t in, int64_t out, bool residual) {
    const at::Tensor weight = parameter({out, in}), bias = parameter({out});
    parts.push_back({name, {{name + ".weight", weight}, {name + ".bias", bias}}, [=](const at::Tensor& x) {
                       const at::Tensor y = at::tanh(at::linear(x.to(weight.dtype()), weight, bias));
                       return residual ? y + x : y;
                     }});
  };
  add("stem", 3, kWidth, false);
  for (int64_t i = 0; i < kDepth; ++i) add("blocks." + std::to_string(i), kWidth, kWidth, true);
  add("head", kWidth, kClasses, false);
  return parts;
}

plan::Plan make_plan(int64_t world, Level level, bool recompute, int64_t prefetch) {
  plan::Plan plan;
  plan.world = world;
  plan.prefetch = prefetch;
  plan.units.push_back({"stem", level, false});
  for (int64_t i = 0; i < kDepth; ++i)
    plan.units.push_back({"blocks." + std::to_string(i), level, recompute});
  plan.units.push_back({"head", level, false});
  return plan;
}

void initialise(ShardedModel& model) {
  for (const auto& unit : model.units()) {
    for (const auto& piece : unit->pieces()) {
      std::vector<float> values(static_cast<size_t>(piece.end - piece.begin));
      fill_normal(random_key(1, piece.name), static_cast<uint64_t>(piece.begin), values, 0.0F, 0.5F, 3.0F);
      at::Tensor master = piece.master;
      master.copy_(at::from_blob(values.data(), {piece.end - piece.begin}, at::kFloat));
    }
  }
  model.parameters_changed();
}

struct Result {
  std::vector<double> losses;
  std::vector<at::Tensor> parameters;  // whole, after the last step
};

/// Three SGD steps of a batch that is spread over ranks and micro-batches.
Result train(mesh::Mesh& mesh, const plan::Plan& plan, int64_t accumulation, at::ScalarType dtype) {
  ShardedModel model(make_parts(), plan, {dtype, at::kFloat}, mesh);
  initialise(model);
  std::vector<float> values(kBatch * 3);
  fill_normal(99, 0, values, 0.0F, 1.0F, 4.0F);
  const at::Tensor images = at::from_blob(values.data(), {kBatch, 3}, at::kFloat);
  const int64_t micro = kBatch / (mesh.world_size() * accumulation);
  Result result;
  for (int step = 0; step < 3; ++step) {
    double loss_sum = 0;
    for (int64_t a = 0; a < accumulation; ++a) {
      const at::Tensor x = images.narrow(0, (mesh.rank() * accumulation + a) * micro, micro);
      const at::Tensor loss = model.forward(x).to(at::kFloat).square().sum() / static_cast<double>(kBatch);
      model.backward(loss, a + 1 == accumulation);
      loss_sum += loss.item<double>();
    }
    at::Tensor sums = at::tensor({loss_sum, model.local_gradient_square_sum()}, at::kDouble);
    mesh.world().all_reduce(sums, "loss");
    result.losses.push_back(sums[0].item<double>());
    result.losses.push_back(sums[1].item<double>());
    const at::NoGradGuard no_grad;
    for (const auto& unit : model.units()) unit->master().sub_(unit->gradient(), 0.1);
    model.parameters_changed();
  }
  for (const auto& unit : model.units()) {
    unit->finish_gather();
    for (const auto& [name, parameter] : unit->parameters()) {
      result.parameters.push_back(parameter.detach().to(at::kFloat).clone());
    }
    unit->release();
  }
  return result;
}

Result reference(at::ScalarType dtype) {
  Result result;
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    result = train(mesh, make_plan(1, Level::kReplicate, false, 0), 1, dtype);
  });
  return result;
}

void expect_close(const Result& a, const Result& b, double tolerance) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (size_t i = 0; i < a.losses.size(); ++i) {
    EXPECT_NEAR(a.losses[i], b.losses[i], tolerance * std::abs(b.losses[i])) << "value " << i;
  }
  for (size_t i = 0; i < a.parameters.size(); ++i) {
    const double difference = (a.parameters[i] - b.parameters[i]).abs().max().item<double>();
    EXPECT_LE(difference, tolerance * b.parameters[i].abs().max().item<double>()) << "parameter " << i;
  }
}

class Layouts : public ::testing::TestWithParam<std::tuple<Level, int64_t>> {};

// fp32: only the order of sums differs.
TEST_P(Layouts, EqualOneRank) {
  const auto [level, world] = GetParam();
  const Result expected = reference(at::kFloat);
  for (const int64_t accumulation : {1, 2}) {
    if (kBatch % (world * accumulation) != 0) continue;
    for (const bool recompute : {false, true}) {
      for (const int64_t prefetch : {0, 1, 2}) {
        testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
          const Result result =
              train(mesh, make_plan(world, level, recompute, prefetch), accumulation, at::kFloat);
          SCOPED_TRACE(
              concat("accumulation ", accumulation, " recompute ", recompute, " prefetch ", prefetch));
          expect_close(result, expected, 2e-6);
        });
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Layouts,
                         ::testing::Combine(::testing::Values(Level::kReplicate, Level::kZero1, Level::kZero2,
                                                              Level::kZero3),
                                            ::testing::Values(1, 2, 3, 4)),
                         [](const auto& info) {
                           return concat(plan::to_string(std::get<0>(info.param)), "_",
                                         std::get<1>(info.param));
                         });

TEST(Layouts, HybridShardsInsideAndReplicatesAcross) {
  const Result expected = reference(at::kFloat);
  testing::run_ranks({{"dp", 2}, {"shard", 2}}, [&](mesh::Mesh& mesh) {
    expect_close(train(mesh, make_plan(4, Level::kZero3, true, 1), 3, at::kFloat), expected, 2e-6);
  });
}

TEST(Layouts, MixedLevelsInOneModel) {
  const Result expected = reference(at::kFloat);
  testing::run_ranks({{"shard", 3}}, [&](mesh::Mesh& mesh) {
    plan::Plan plan = make_plan(3, Level::kZero3, false, 1);
    plan.units[1].level = Level::kReplicate;
    plan.units[2].level = Level::kZero1;
    plan.units[3].level = Level::kZero2;
    plan.units[3].recompute = true;
    expect_close(train(mesh, plan, 2, at::kFloat), expected, 2e-6);
  });
}

// Recompute repeats the same arithmetic: not one bit differs.
TEST(Recompute, IsBitwise) {
  testing::run_ranks({{"shard", 2}}, [](mesh::Mesh& mesh) {
    const Result a = train(mesh, make_plan(2, Level::kZero3, false, 1), 1, at::kFloat);
    const Result b = train(mesh, make_plan(2, Level::kZero3, true, 1), 1, at::kFloat);
    EXPECT_EQ(a.losses, b.losses);
    for (size_t i = 0; i < a.parameters.size(); ++i) EXPECT_TRUE(a.parameters[i].equal(b.parameters[i]));
  });
}

TEST(Bf16, FollowsOneRank) {
  const Result expected = reference(at::kBFloat16);
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    expect_close(train(mesh, make_plan(2, Level::kZero3, false, 1), 1, at::kBFloat16), expected, 2e-2);
  });
}

// docs/sharding: per step and micro-batch, ZeRO-3 gathers twice (the last unit once) and reduces once.
TEST(Traffic, EqualsTheFormula) {
  const int64_t world = 2, accumulation = 2;
  for (const Level level : {Level::kZero1, Level::kZero2, Level::kZero3}) {
    testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
      train(mesh, make_plan(world, level, false, 1), accumulation, at::kFloat);
      const auto padded = [&](int64_t n) { return (n + world - 1) / world * world; };
      const int64_t stem = padded(3 * kWidth + kWidth), block = padded(kWidth * kWidth + kWidth);
      const int64_t head = padded(kWidth * kClasses + kClasses), all = stem + kDepth * block + head;
      const int64_t steps = 3,
                    share = 4 * (world - 1);  // float32 bytes times ranks sent to; of all / world each
      const int64_t micro = steps * accumulation;
      int64_t gathered = steps * all, reduced = micro * all;  // ZeRO-2: parameters once a step
      if (level == Level::kZero3) gathered = micro * (2 * all - head);
      if (level == Level::kZero1) reduced = steps * all;
      gathered += all;  // the comparison at the end of train() reads every parameter
      EXPECT_EQ(mesh.group("shard").traffic().at("all_gather").bytes_sent, gathered * share / world);
      EXPECT_EQ(mesh.group("shard").traffic().at("reduce_scatter").bytes_sent, reduced * share / world);
    });
  }
}

}  // namespace
}  // namespace tessera
