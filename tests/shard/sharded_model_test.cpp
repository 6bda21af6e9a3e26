// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/sharded_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "../mesh/ranks.h"
#include "foreign_net.h"
#include "tessera/base/random.h"
#include "tessera/base/text.h"
#include "tessera/ops/linear.h"

namespace tessera {
namespace {

using plan::Level;
using shard::NamedTensor;
using shard::Precision;
using shard::ShardedModel;
using shard::ShardedSegment;

constexpr int64_t kWidth = 7, kDepth = 3, kClasses = 5, kBatch = 12;

/// A small residual net of odd sizes, so that no shard boundary falls on a parameter's.
std::vector<ShardedSegment> make_segments() {
  std::vector<ShardedSegment> segments;
  const auto parameter = [](at::IntArrayRef shape) { return at::zeros(shape).requires_grad_(true); };
  const auto add = [&](const std::string& name, int64_t in, int64_t out, bool residual) {
    const at::Tensor weight = parameter({out, in}), bias = parameter({out});
    segments.push_back({name, {{name + ".weight", weight}, {name + ".bias", bias}}, [=](const at::Tensor& x) {
                          const at::Tensor y = at::tanh(at::linear(x.to(weight.dtype()), weight, bias));
                          return residual ? y + x : y;
                        }});
  };
  add("stem", 3, kWidth, false);
  for (int64_t i = 0; i < kDepth; ++i) add("blocks." + std::to_string(i), kWidth, kWidth, true);
  add("head", kWidth, kClasses, false);
  return segments;
}

plan::Plan make_plan(int64_t world, Level level, bool recompute, int64_t prefetch) {
  plan::Plan plan;
  plan.world = world;
  plan.prefetch = prefetch;
  const auto how = recompute ? plan::Recompute::kAll : plan::Recompute::kNone;
  plan.units.push_back({"stem", level});
  for (int64_t i = 0; i < kDepth; ++i) plan.units.push_back({"blocks." + std::to_string(i), level, how});
  plan.units.push_back({"head", level});
  return plan;
}

void initialise(ShardedModel& model) {
  for (const auto& unit : model.units()) {
    for (const auto& shard : unit->shards()) {
      const auto& [box, begin, end] = shard.regions.at(0);
      std::vector<float> values(static_cast<size_t>(end - begin));
      fill_normal(random_key(1, shard.name), static_cast<uint64_t>(begin), values, 0.0F, 0.5F, 3.0F);
      at::Tensor master = shard.master;
      master.copy_(at::from_blob(values.data(), {end - begin}, at::kFloat));
    }
  }
  model.parameters_changed();
}

// A unit in which a bias of an odd size stands before matrices, as with two heads: gathered on several ranks,
// and on one rank, where parameters are views of the shard.
TEST(Layout, ParametersAreAlignedByTheirSizes) {
  const std::vector<std::vector<int64_t>> shapes = {{37},      {37, 64}, {37}, {196, 196}, {196},
                                                    {384, 24}, {3},      {0},  {64}};
  for (const int64_t world : {1, 3}) {
    testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
      std::vector<NamedTensor> parameters;
      for (const auto& shape : shapes) {
        const at::Tensor parameter = at::zeros(shape).requires_grad_(true);
        parameters.emplace_back(concat("p", parameters.size()), parameter);
      }
      shard::BufferPool pool{at::kCPU};
      shard::Unit unit("unit", parameters, Level::kZero3, {at::kBFloat16},
                       {mesh.group("shard"), mesh.group("dp")}, pool);
      std::vector<at::Tensor> values;  // exact in bf16
      for (const auto& shape : shapes) {
        const auto first = static_cast<double>(17 * values.size());
        values.push_back(
            at::arange(c10::multiply_integers(shape)).add(first).remainder(251).to(at::kFloat).view(shape));
      }
      unit.set_values(values, std::nullopt);
      unit.finish_gather();
      int64_t end = 0;
      std::map<int64_t, int64_t> ends;  // by the offset of each parameter that has elements
      for (size_t i = 0; i < shapes.size(); ++i) {
        const at::Tensor& gathered = unit.parameters()[i].second;
        const int64_t power = std::gcd(gathered.numel(), int64_t{64});
        EXPECT_EQ(unit.offset(i) % power, 0) << i;
        if (gathered.numel() == 0) continue;
        const auto alignment =
            static_cast<uintptr_t>(std::min<int64_t>(2 * power, 64));  // 64 bytes: LibTorch's
        EXPECT_EQ(reinterpret_cast<uintptr_t>(gathered.data_ptr()) % alignment, 0U) << i;
        EXPECT_TRUE(at::equal(gathered.to(at::kFloat), values[i])) << i;
        EXPECT_TRUE(ends.emplace(unit.offset(i), unit.offset(i) + gathered.numel()).second) << i;
      }
      for (const auto& [begin, next] : ends) {
        EXPECT_EQ(begin, end) << "no gap and no overlap";
        end = next;
      }
      EXPECT_EQ(end, unit.numel());
    });
  }
}

struct Trained {
  std::vector<double> losses;
  std::vector<at::Tensor> parameters;  // whole, after the last step
};

/// Three SGD steps of a batch that is spread over ranks and micro-batches.
Trained train(mesh::Mesh& mesh, const plan::Plan& plan, int64_t accumulation, const Precision& precision) {
  ShardedModel model(make_segments(), plan, precision, mesh);
  initialise(model);
  std::vector<float> values(kBatch * 3);
  fill_normal(99, 0, values, 0.0F, 1.0F, 4.0F);
  const at::Tensor images = at::from_blob(values.data(), {kBatch, 3}, at::kFloat);
  const int64_t micro = kBatch / (mesh.world_size() * accumulation);
  Trained result;
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
    for (const auto& unit : model.units()) {
      EXPECT_FALSE(unit->gradient().defined()) << "memory for the next forward's activations";
    }
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

Trained train(mesh::Mesh& mesh, const plan::Plan& plan, int64_t accumulation, at::ScalarType dtype) {
  return train(mesh, plan, accumulation, Precision{dtype, at::kFloat});
}

Trained reference(at::ScalarType dtype) {
  Trained result;
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    result = train(mesh, make_plan(1, Level::kReplicate, false, 0), 1, dtype);
  });
  return result;
}

void expect_close(const Trained& a, const Trained& b, double tolerance) {
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
  const Trained expected = reference(at::kFloat);
  for (const int64_t accumulation : {1, 2}) {
    if (kBatch % (world * accumulation) != 0) continue;
    for (const bool recompute : {false, true}) {
      for (const int64_t prefetch : {0, 1, 2}) {
        testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
          const Trained result =
              train(mesh, make_plan(world, level, recompute, prefetch), accumulation, at::kFloat);
          SCOPED_TRACE(
              concat("accumulation ", accumulation, " recompute ", recompute, " prefetch ", prefetch));
          expect_close(result, expected, 1e-6);
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
  const Trained expected = reference(at::kFloat);
  testing::run_ranks({{"dp", 2}, {"shard", 2}}, [&](mesh::Mesh& mesh) {
    plan::Plan plan = make_plan(4, Level::kZero3, true, 1);
    plan::set_shard_ranks(&plan, 2);
    expect_close(train(mesh, plan, 3, at::kFloat), expected, 1e-6);
  });
}

TEST(Layouts, MixedLevelsInOneModel) {
  const Trained expected = reference(at::kFloat);
  testing::run_ranks({{"shard", 3}}, [&](mesh::Mesh& mesh) {
    plan::Plan plan = make_plan(3, Level::kZero3, false, 1);
    plan.units[1].level = Level::kReplicate;
    plan.units[2].level = Level::kZero1;
    plan.units[3].level = Level::kZero2;
    plan.units[3].recompute = plan::Recompute::kAll;
    expect_close(train(mesh, plan, 2, at::kFloat), expected, 1e-6);
  });
}

// Recompute repeats the same arithmetic: not one bit differs.
TEST(Recompute, IsBitwise) {
  testing::run_ranks({{"shard", 2}}, [](mesh::Mesh& mesh) {
    const Trained a = train(mesh, make_plan(2, Level::kZero3, false, 1), 1, at::kFloat);
    const Trained b = train(mesh, make_plan(2, Level::kZero3, true, 1), 1, at::kFloat);
    EXPECT_EQ(a.losses, b.losses);
    for (size_t i = 0; i < a.parameters.size(); ++i) EXPECT_TRUE(a.parameters[i].equal(b.parameters[i]));
  });
}

TEST(Bf16, FollowsOneRank) {
  const Trained expected = reference(at::kBFloat16);
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    expect_close(train(mesh, make_plan(2, Level::kZero3, false, 1), 1, at::kBFloat16), expected, 2e-2);
  });
}

struct Sent {
  int64_t gathered = 0, reduced = 0;
};

struct Setting {
  Level level = Level::kZero3;
  int64_t world = 2, accumulation = 1;
  bool recompute = false;
  at::ScalarType compute = at::kFloat, reduce = at::kFloat;
};

constexpr int64_t kTrainedSteps = 3;  // of train()

/// What one rank sent while it trained.
Sent measure(const Setting& s) {
  Sent result;
  testing::run_ranks({{"shard", s.world}}, [&](mesh::Mesh& mesh) {
    const Precision precision{s.compute, s.reduce};
    train(mesh, make_plan(s.world, s.level, s.recompute, 1), s.accumulation, precision);
    const auto& traffic = mesh.group("shard").traffic();
    const auto bytes = [&](const char* kind) {
      return traffic.count(kind) > 0 ? traffic.at(kind).bytes_sent : 0;
    };
    if (mesh.rank() == 0) result = {bytes("all_gather"), bytes("reduce_scatter")};
  });
  return result;
}

/// docs/sharding.md, "On the wire": W and G are bytes of parameters and gradients, each times (n - 1) / n.
/// Replicate 2 G; ZeRO-1 W + G; ZeRO-2 W + k G; ZeRO-3 k (2 W + G), less the last unit's second gather.
Sent formula(const Setting& s) {
  const auto padded = [&](int64_t n) { return (n + s.world - 1) / s.world * s.world; };
  const int64_t head = padded(kWidth * kClasses + kClasses);
  const int64_t all = padded(3 * kWidth + kWidth) + kDepth * padded(kWidth * kWidth + kWidth) + head;
  const auto c = static_cast<int64_t>(at::elementSize(s.compute)),
             r = static_cast<int64_t>(at::elementSize(s.reduce));
  int64_t gathered = c * all, reduced = s.accumulation * std::min(c, r) * all;
  if (s.level == Level::kReplicate) gathered = r * all;
  if (s.level == Level::kReplicate || s.level == Level::kZero1) reduced = r * all;
  if (s.level == Level::kZero3) gathered = s.accumulation * c * (2 * all - head);
  const int64_t read_at_the_end = s.level == Level::kReplicate ? 0 : c * all;  // by train(), to compare
  return {(kTrainedSteps * gathered + read_at_the_end) / s.world * (s.world - 1),
          kTrainedSteps * reduced / s.world * (s.world - 1)};
}

TEST(Traffic, EqualsTheFormula) {
  for (const Level level : {Level::kReplicate, Level::kZero1, Level::kZero2, Level::kZero3}) {
    for (const int64_t world : {2, 3}) {
      for (const int64_t accumulation : {1, 2}) {
        for (const bool recompute : {false, true}) {
          for (const auto compute : {at::kFloat, at::kBFloat16}) {
            for (const auto reduce : {at::kFloat, at::kBFloat16}) {
              const Setting setting{level, world, accumulation, recompute, compute, reduce};
              const Sent measured = measure(setting), expected = formula(setting);
              SCOPED_TRACE(concat(plan::to_string(level), " world ", world, " accumulation ", accumulation,
                                  " recompute ", recompute, " compute ", compute, " reduce ", reduce));
              EXPECT_EQ(measured.gathered, expected.gathered);
              EXPECT_EQ(measured.reduced, expected.reduced);
            }
          }
        }
      }
    }
  }
}

/// Gradients by name after a step of a unit that uses its matrix twice: what the operation makes in the first
/// one's place must not be the second one's too.
std::map<std::string, at::Tensor> gradients_of_twice_used(int64_t world, Level level, bool recompute,
                                                          at::ScalarType compute) {
  std::map<std::string, at::Tensor> result;
  testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
    const auto parameter = [](at::IntArrayRef shape) { return at::zeros(shape).requires_grad_(true); };
    std::vector<ShardedSegment> segments;
    for (const std::string name : {"first", "second"}) {
      const at::Tensor weight = parameter({16, 16}), bias = parameter({16});
      segments.push_back(
          {name, {{name + ".weight", weight}, {name + ".bias", bias}}, [=](const at::Tensor& x) {
             return ops::linear(at::tanh(ops::linear(x, weight, bias)), weight, bias);
           }});
    }
    plan::Plan plan;
    plan.world = world;
    plan.units = {{"first", level},
                  {"second", level, recompute ? plan::Recompute::kAll : plan::Recompute::kNone}};
    ShardedModel model(std::move(segments), plan, {compute, at::kFloat, at::kFloat, at::kFloat}, mesh);
    initialise(model);
    const at::Tensor x = testing::normal("x", {8, 16}).narrow(0, mesh.rank() * 8 / world, 8 / world);
    model.backward(model.forward(x.to(compute)).to(at::kFloat).square().sum(), true);
    for (const auto& unit : model.units()) {
      at::Tensor whole = at::empty({unit->padded_numel()});
      if (level == Level::kReplicate) {
        whole.copy_(unit->gradient());
      } else {
        mesh.group("shard").all_gather(whole, unit->gradient(), "t").wait();
      }
      if (mesh.rank() == 0) result[unit->name()] = whole.narrow(0, 0, unit->numel()).clone();
    }
  });
  return result;
}

TEST(ShardedModel, GradientsOfAMatrixThatIsUsedTwiceAreAddedUp) {
  for (const auto compute : {at::kFloat, at::kBFloat16}) {
    // In float64 there are no kernels, and so no places.
    const auto exact = gradients_of_twice_used(1, Level::kReplicate, false, at::kDouble);
    for (const auto& [world, level] : {std::pair(1, Level::kZero3), std::pair(2, Level::kZero3),
                                       std::pair(2, Level::kZero1), std::pair(2, Level::kReplicate)}) {
      for (const bool recompute : {false, true}) {
        SCOPED_TRACE(concat(at::toString(compute), " world ", world, " ", plan::to_string(level),
                            " recompute ", recompute));
        const auto found = gradients_of_twice_used(world, level, recompute, compute);
        for (const auto& [name, expected] : exact) {
          const double error = (found.at(name) - expected).abs().max().item<double>(),
                       size = expected.abs().max().item<double>();
          EXPECT_LT(error, (compute == at::kFloat ? 1e-5 : 0.05) * size) << name;
        }
      }
    }
  }
}

// The unit has seen as many gradients as in the pass before when one is still on its way that was made in its
// place (half of it: the matrix is used twice). It waits for that one.
TEST(ShardedModel, AGradientOnItsWayIsWaitedFor) {
  for (const int64_t world : {1, 2}) {
    testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
      const auto parameter = [](at::IntArrayRef shape) { return at::zeros(shape).requires_grad_(true); };
      const at::Tensor weight = parameter({16, 16}), first = parameter({16}), second = parameter({16}),
                       extra = parameter({16});
      bool all = false;
      const auto forward = [&all](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b1,
                                  const at::Tensor& b2, const at::Tensor& e) {
        return all ? ops::linear(ops::linear(x, w, b1), w, b2) * e : ops::linear(x, w, b2);
      };
      std::vector<ShardedSegment> segments;
      segments.push_back({"only",
                          {{"weight", weight}, {"first", first}, {"second", second}, {"extra", extra}},
                          [&](const at::Tensor& x) { return forward(x, weight, first, second, extra); }});
      plan::Plan plan;
      plan.world = world;
      plan.units = {{"only", Level::kZero3}};
      ShardedModel model(std::move(segments), plan, {}, mesh);
      initialise(model);
      const at::Tensor x = testing::normal("x", {8, 16});
      for (const bool with_all : {false, true}) {
        all = with_all;
        const auto& unit = model.units()[0];
        unit->finish_gather();
        const auto alone = [](const at::Tensor& t) { return t.detach().clone().requires_grad_(true); };
        const at::Tensor w = alone(weight), b1 = alone(first), b2 = alone(second), e = alone(extra);
        forward(x, w, b1, b2, e).square().sum().backward();
        model.backward(model.forward(x).square().sum(), true);
        const shard::Shard& shard = unit->shards()[0];
        const at::Tensor expected =
            w.grad().flatten().slice(0, shard.regions.at(0).begin, shard.regions.at(0).end) * world;
        EXPECT_TRUE(at::allclose(shard.gradient, expected, 1e-4, 1e-4))
            << "all " << all << " world " << world;
        model.parameters_changed();
      }
    });
  }
}

// One rank owns every unit, so its parameters are its shards.
TEST(Traffic, OneRankNeitherCopiesNorSends) {
  for (const Level level : {Level::kReplicate, Level::kZero3}) {
    testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
      ShardedModel model(make_segments(), make_plan(1, level, false, 1), {}, mesh);
      initialise(model);
      for (int step = 0; step < 2; ++step) {
        model.backward(model.forward(at::ones({kBatch, 3})).sum(), true);
        for (const auto& unit : model.units()) {
          for (size_t i = 0; i < unit->parameters().size(); ++i) {
            EXPECT_EQ(unit->parameters()[i].second.data_ptr(), unit->shards()[i].master.data_ptr());
          }
        }
        model.parameters_changed();
      }
      for (const auto& [kind, traffic] : mesh.group("shard").traffic())
        EXPECT_EQ(traffic.bytes_sent, 0) << kind;
    });
  }
}

}  // namespace
}  // namespace tessera
