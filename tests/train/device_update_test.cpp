// SPDX-License-Identifier: Apache-2.0
// The step's end in a device's memory, on a CPU: the decisions and the bits of the host's way.
#include "tessera/eager/device_update.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "small_run.h"
#include "tessera/eager/step_end.h"
#include "tessera/ops/cpu/cpu.h"
#include "tessera/shard/clip.h"

namespace tessera::train {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The state decides and updates as on a device from now on.
void decide_as_a_device(TrainState& state, mesh::Mesh& mesh) {
  state.device_update =
      std::make_shared<DeviceUpdate>(*state.optimizer, *state.sharded, all_ranks(mesh), at::kCPU);
}

struct Trained {
  Curve curve;
  std::vector<StepResult> steps;
};

Trained train_either_way(int64_t world, const recipe::Recipe& recipe, bool as_a_device, int64_t steps,
                         const Factors& factors = {}) {
  at::set_num_threads(1);
  Trained result;
  testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
    const auto state = assemble(recipe, make_plan(recipe, world), mesh, true);
    EXPECT_EQ(state->device_update, nullptr);
    if (as_a_device) decide_as_a_device(*state, mesh);
    Trained mine;
    train_with_factors(*state, mesh, steps, factors, mine.curve, /*as_bytes=*/false, &mine.steps);
    if (mesh.rank() == 0) result = mine;
  });
  return result;
}

void expect_same_training(const Trained& found, const Trained& expected) {
  EXPECT_EQ(found.curve.losses, expected.curve.losses);
  EXPECT_EQ(found.curve.norms, expected.curve.norms);
  expect_equal(found.curve.parameters, expected.curve.parameters);
}

TEST(DeviceUpdate, CurveIsBitwiseTheHosts) {
  const std::vector<Sets> all = {
      {},
      {"train.clip=0"},
      {"optimizer.name=adam", "optimizer.weight_decay=0.01", "optimizer.lr=1e-3"},
      {"optimizer.groups=[\"blocks.1.*: freeze\", \"head.*: lr_scale=0.5, weight_decay=0\"]",
       "optimizer.layer_decay=0.8"},
      {"train.accumulation=3", "ema.decay=0.9"},
      {"precision.compute=bf16", "train.mixup=0.8"},
      {"schedule.warmup_steps=0", "schedule.name=linear", "optimizer.no_decay=none"},
  };
  for (const Sets& sets : all) {
    for (const int64_t world : {1, 2}) {
      SCOPED_TRACE(::testing::PrintToString(sets) + concat(" ranks: ", world));
      const recipe::Recipe recipe = make_recipe(sets);
      expect_same_training(train_either_way(world, recipe, true, 5),
                           train_either_way(world, recipe, false, 5));
    }
  }
  for (const char* level : {"zero1", "zero2", "replicate"}) {
    SCOPED_TRACE(level);
    const recipe::Recipe recipe = make_recipe({concat("shard.level=", level), "train.accumulation=2"});
    expect_same_training(train_either_way(3, recipe, true, 4), train_either_way(3, recipe, false, 4));
  }
  expect_same_training(train_either_way(1, resnet_recipe(), true, 4),
                       train_either_way(1, resnet_recipe(), false, 4));
}

// Steps that are not finite, spikes and the steps after one: the same ones are skipped, nothing of them
// stays, and the bias correction counts the updates that were made.
TEST(DeviceUpdate, SkipsTheStepsThatTheGuardSkips) {
  const recipe::Recipe recipe =
      make_recipe({"guard.skip_steps=2", "guard.spike_factor=3", "guard.spike_window=2",
                   "guard.spike_steps=1", "guard.spike_skip=1", "train.steps=12"});
  const Factors factors = {{2, kInfinity}, {5, 3000.0}, {8, kInfinity}};
  for (const int64_t world : {1, 2}) {
    const Trained found = train_either_way(world, recipe, true, 12, factors);
    const Trained expected = train_either_way(world, recipe, false, 12, factors);
    int64_t skipped = 0;
    for (size_t i = 0; i < expected.steps.size(); ++i) {
      EXPECT_EQ(found.steps[i].skipped, expected.steps[i].skipped) << i;
      skipped += expected.steps[i].skipped.empty() ? 0 : 1;
    }
    EXPECT_EQ(skipped, 4);
    expect_equal(found.curve.parameters, expected.curve.parameters);
  }
  const recipe::Recipe strict = make_recipe({"train.steps=12"});
  EXPECT_THROW(train_either_way(2, strict, true, 4, {{2, kInfinity}}), UserError);
}

/// A model of one small unit whose gradient is what a test puts there.
struct OneUnit {
  std::unique_ptr<mesh::Mesh> mesh = mesh::Mesh::pretend(0, {{"shard", 1}});
  std::unique_ptr<TrainState> state;

  explicit OneUnit(const recipe::Recipe& recipe, at::Device device = at::kCPU)
      : state(assemble(recipe, make_plan(recipe, 1), *mesh, true, device)) {
    for (const auto& unit : state->sharded->units()) unit->hold_gradient();
    if (device.is_cpu()) decide_as_a_device(*state, *mesh);
  }
  /// The gradient's first value is this, all others are 0.
  void set_gradient(double value) {
    for (const auto& unit : state->sharded->units()) unit->gradient().zero_();
    state->sharded->units()[0]->gradient()[0] = value;
  }
};

// What a device computes: loss, norm, decision, and in `found` the host's read of it.
TEST(DeviceUpdate, DecidesAsTheGuardForAnyNumbers) {
  OneUnit one(make_recipe());
  DeviceUpdate& update = *one.state->device_update;
  const std::vector<double> losses = {1, 0, -1, 2, 2.0000000000000004, 1e300, kNan, kInfinity, -kInfinity};
  const std::vector<double> gradients = {0, 1e-3, 1, 1e25, kNan, kInfinity};
  for (const double loss : losses) {
    for (const double gradient : gradients) {
      one.set_gradient(gradient);
      for (const monitor::StepLimit& limit :
           {monitor::StepLimit{true, 2}, monitor::StepLimit{false, 2}, monitor::StepLimit{true, kInfinity}}) {
        const at::Tensor before = one.state->sharded->units()[0]->master().clone();
        update.prepare(at::scalar_tensor(loss, at::kDouble), {1e-3, 0.5, 1, limit});
        update.decide();
        update.begin_read();
        update.update();
        const StepValues numbers = update.read();
        EXPECT_EQ(update.was_made(), limit.allows(numbers.loss, numbers.gradient_norm))
            << loss << ' ' << gradient;
        EXPECT_EQ(std::isnan(numbers.loss), std::isnan(loss));
        EXPECT_TRUE(numbers.loss == loss || std::isnan(loss));
        EXPECT_EQ(before.equal(one.state->sharded->units()[0]->master()), !update.was_made());
      }
    }
  }
}

TEST(DeviceUpdate, ClipsWithTheHostsBits) {
  OneUnit one(make_recipe());
  DeviceUpdate& update = *one.state->device_update;
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> exponent(-12, 12), share(0.5, 2);
  for (int i = 0; i < 2000; ++i) {
    const double gradient = std::exp(exponent(random)), clip = i % 5 == 0 ? 0 : gradient * share(random);
    const double loss_scale = i % 2 == 0 ? 1 : 65536;
    one.set_gradient(gradient);
    update.prepare(at::scalar_tensor(1.0, at::kDouble), {1e-3, clip, loss_scale, {true, kInfinity}});
    update.decide();
    update.begin_read();
    const double norm = std::sqrt(one.state->sharded->local_gradient_square_sum()) / loss_scale;
    ASSERT_EQ(update.read().gradient_norm, norm);
    const double scale = clip > 0 ? shard::clip_scale(clip, norm) : 1.0;
    ASSERT_EQ(update.grad_scale().item<float>(), static_cast<float>(scale / loss_scale));
  }
}

// Optimizers whose updates cannot be queued, on a device: votes by themselves, then loss and norm, read once.
TEST(StepEnd, NumbersAreThoseOfTheCpusWay) {
  testing::run_ranks({{"shard", 3}}, [](mesh::Mesh& mesh) {
    for (const char* level : {"zero3", "replicate"}) {
      const recipe::Recipe recipe =
          make_recipe({"optimizer.name=lion", "optimizer.lr=1e-4", concat("shard.level=", level)});
      const auto state = assemble(recipe, make_plan(recipe, 3), mesh, true);
      // One for each rank: ranks are threads here, and would draw from the process's generator by turns.
      auto generator =
          at::make_generator<at::CPUGeneratorImpl>(5 + (level == std::string("zero3") ? mesh.rank() : 0));
      for (const auto& unit : state->sharded->units()) {
        unit->hold_gradient();
        unit->gradient().copy_(at::randn({unit->shard_numel()}, generator));
      }
      const at::Tensor loss = at::scalar_tensor(0.1 * static_cast<double>(mesh.rank() + 1), at::kDouble);
      const Votes mine{mesh.rank() == 1, mesh.rank() == 2, mesh.rank()};
      StepEnd here(*state, loss, mine, mesh), there(*state, loss, mine, mesh, /*elsewhere=*/true);
      for (const StepEnd* end : {&here, &there}) {
        EXPECT_TRUE(end->votes().stop && end->votes().stalled);
        EXPECT_EQ(end->votes().broken, 3);
      }
      const UpdateSettings settings{1e-4, 0, 1, {}};
      const StepValues found = there.values(settings), expected = here.values(settings);
      EXPECT_EQ(found.loss, expected.loss);
      EXPECT_EQ(found.gradient_norm, expected.gradient_norm);
      EXPECT_GT(found.gradient_norm, 1);
    }
  });
}

// Tensors without memory: nothing that the host would have to read is read before read().
TEST(DeviceUpdate, ReadsNothingWhileItQueues) {
  for (const char* optimizer : {"adamw", "adam"}) {
    const recipe::Recipe recipe = make_recipe(
        {concat("optimizer.name=", optimizer), "precision.compute=bf16", "optimizer.weight_decay=0.1"});
    OneUnit one(recipe, at::kMeta);
    ASSERT_NE(one.state->device_update, nullptr);
    DeviceUpdate& update = *one.state->device_update;
    update.prepare(at::zeros({}, at::TensorOptions(at::kDouble).device(at::kMeta)), {1e-3, 0.5, 1, {}});
    update.decide();
    update.update();
    EXPECT_TRUE(update.found().is_meta());
    EXPECT_ANY_THROW(update.begin_read());
  }
  const recipe::Recipe lion = make_recipe({"optimizer.name=lion", "optimizer.lr=1e-4"});
  EXPECT_EQ(OneUnit(lion, at::kMeta).state->device_update, nullptr);
}

}  // namespace
}  // namespace tessera::train
