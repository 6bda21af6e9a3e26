// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "tessera/recipe/make_plan.h"
#include "tessera/recipe/warnings.h"
#include "tests/recipe/recipe_text.h"

namespace tessera::recipe {
namespace {

std::string resolved(int64_t batch, int64_t per_rank, int64_t accumulation, int64_t world) {
  TrainRecipe train;
  train.batch = batch;
  train.batch_per_rank = per_rank;
  train.accumulation = accumulation;
  try {
    const BatchSizes sizes = resolve_batch(train, world);
    return concat(sizes.batch, " = ", sizes.per_rank, " x ", world, " x ", sizes.accumulation);
  } catch (const UserError& error) {
    return error.what();
  }
}

TEST(Batch, AnyTwoFixTheThird) {
  EXPECT_EQ(resolved(96, 0, 0, 3), "96 = 32 x 3 x 1");
  EXPECT_EQ(resolved(0, 32, 0, 3), "96 = 32 x 3 x 1");
  EXPECT_EQ(resolved(96, 16, 0, 3), "96 = 16 x 3 x 2");
  EXPECT_EQ(resolved(96, 0, 4, 3), "96 = 8 x 3 x 4");
  EXPECT_EQ(resolved(0, 8, 4, 3), "96 = 8 x 3 x 4");
  EXPECT_EQ(resolved(96, 8, 4, 3), "96 = 8 x 3 x 4");
  EXPECT_EQ(resolved(1, 0, 0, 1), "1 = 1 x 1 x 1");
}

/// The rank with most images decides `per_rank`.
TEST(Batch, NeedNotBeAMultipleOfRanksAndAccumulation) {
  EXPECT_EQ(resolved(100, 0, 0, 3), "100 = 34 x 3 x 1");
  EXPECT_EQ(resolved(100, 0, 8, 1), "100 = 13 x 1 x 8");
  EXPECT_EQ(resolved(2, 0, 0, 3), "2 = 1 x 3 x 1");
  EXPECT_EQ(resolved(1, 0, 4, 2), "1 = 1 x 2 x 4");
}

TEST(Batch, ContradictionsAreOneLine) {
  EXPECT_EQ(resolved(100, 16, 0, 3),
            "[recipe.resolve_batch] train.batch is 100: expected a multiple of 3 ranks x batch_per_rank 16 = "
            "48; nearest: 96 and 144; without train.batch_per_rank any batch is allowed");
  EXPECT_EQ(resolved(100, 16, 2, 3),
            "[recipe.resolve_batch] train.batch is 100: expected train.batch_per_rank x ranks x "
            "train.accumulation = 16 x 3 x 2 = 96; give any two of the three settings");
  EXPECT_EQ(resolved(0, 0, 4, 3),
            "[recipe.resolve_batch] the batch size is not given: expected train.batch or "
            "train.batch_per_rank above 0");
  EXPECT_EQ(resolved(-1, 0, 0, 3),
            "[recipe.resolve_batch] train.batch, train.batch_per_rank and train.accumulation are -1, 0 and "
            "0: expected values of at least 0");
  EXPECT_EQ(resolved(0, 1000000000, 1000000, 1000),
            "[recipe.resolve_batch] the global batch is train.batch_per_rank 1000000000 x 1000 ranks x "
            "train.accumulation 1000000: expected at most 1e15 images");
}

std::vector<std::string> warned(int64_t batch, int64_t accumulation, int64_t world, const char* sets = "") {
  const Recipe recipe =
      parse_recipe("[data]\nsource = \"fake:8\"\n[train]\nsteps = 1\n", "test", ".",
                   {concat("train.batch=", batch), concat("train.accumulation=", accumulation),
                    concat("shard.units=", sets)});
  const plan::Plan plan = make_plan(recipe, world);
  return batch_warnings(batch_sizes(recipe, plan), plan);
}

TEST(Batch, RanksAndMicroBatchesWithoutImagesAreWarnedOf) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(warned(4, 1, 4), Lines());
  EXPECT_EQ(warned(5, 2, 4), Lines());
  EXPECT_EQ(
      warned(3, 1, 4),
      Lines{"[recipe.batch] train.batch is 3 on 4 ranks, so 1 rank has no images to compute; use a larger "
            "batch or fewer ranks"});
  // The ranks of a tensor group compute each of its images together.
  EXPECT_EQ(warned(1, 1, 4, "blocks.0=tensor4"), Lines());
  EXPECT_EQ(warned(1, 1, 4, "blocks.0=tensor2"),
            Lines{"[recipe.batch] train.batch is 1 on 4 ranks, so 2 ranks have no images to compute; use a "
                  "larger batch or fewer ranks"});
  EXPECT_EQ(warned(5, 4, 2),
            Lines{"[recipe.batch] train.batch is 5 in 4 micro-batches over 2 ranks, so 1 micro-batch has no "
                  "images and still cost time; reduce train.accumulation"});
}

std::string resnet_error(int64_t batch, int64_t world, const char* sync = "false") {
  try {
    const Recipe recipe =
        parse_recipe("[model]\npreset = \"resnet18\"\n[data]\nsource = \"fake:8\"\n[train]\nsteps = 1\n",
                     "test", ".", {concat("train.batch=", batch), concat("model.batch_norm_sync=", sync)});
    static_cast<void>(batch_sizes(recipe, make_plan(recipe, world)));
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

/// Running statistics of a rank that never has an image would be those it began with.
TEST(Batch, BatchNormNeedsAnImageOnEachRank) {
  EXPECT_EQ(
      resnet_error(3, 4),
      "[recipe.batch_sizes] train.batch is 3 on 4 ranks, each of which takes the statistics of BatchNorm "
      "over its images: expected at least one image for each rank; increase train.batch, set "
      "model.batch_norm_sync = true, or use fewer ranks");
  EXPECT_EQ(resnet_error(5, 4), "no error");
  EXPECT_EQ(resnet_error(3, 4, "true"), "no error");
}

TEST(Steps, EpochsAndSteps) {
  Recipe recipe;
  recipe.train.epochs = 2.5;
  recipe.schedule.warmup_epochs = 0.5;
  StepCounts counts = count_steps(recipe, 1050, 100);
  EXPECT_EQ(counts.steps_per_epoch, 10);
  EXPECT_EQ(counts.total, 25);
  EXPECT_EQ(counts.warmup, 5);
  recipe.train.epochs = 0;
  recipe.train.steps = 7;
  recipe.schedule.warmup_epochs = 0;
  recipe.schedule.warmup_steps = 3;
  counts = count_steps(recipe, 1050, 100);
  EXPECT_EQ(counts.total, 7);
  EXPECT_EQ(counts.warmup, 3);
  recipe.train.steps = 0;
  recipe.train.epochs = 0.001;
  EXPECT_EQ(count_steps(recipe, 1050, 100).total, 1);
  EXPECT_EQ(count_steps(recipe, 100, 100).steps_per_epoch, 1);
  EXPECT_EQ(error_text([&] { count_steps(recipe, 99, 100); }),
            "[recipe.count_steps] the training set has 99 images: expected at least one batch (100 images); "
            "reduce train.batch");
}

TEST(Steps, RemainderOfAnEpoch) {
  Recipe recipe;
  recipe.train.epochs = 3;
  recipe.data.order.remainder = data::Remainder::kKeep;
  EXPECT_EQ(count_steps(recipe, 1050, 100).steps_per_epoch, 11);
  EXPECT_EQ(count_steps(recipe, 1050, 100).total, 33);
  EXPECT_EQ(count_steps(recipe, 99, 100).total, 3);
  recipe.data.order.remainder = data::Remainder::kCarry;
  EXPECT_EQ(count_steps(recipe, 1050, 100).steps_per_epoch, 10.5);
  EXPECT_EQ(count_steps(recipe, 1050, 100).total, 32);  // 31.5
  EXPECT_EQ(count_steps(recipe, 99, 100).total, 3);
}

// The published length of the 90-epoch run, round(1281167 / 1024 * 90) = 112,603, is that of a remainder
// which is carried over; by default the remainder of an epoch is dropped.
TEST(Steps, ImageNet) {
  Recipe recipe;
  recipe.train.epochs = 90;
  EXPECT_EQ(count_steps(recipe, 1281167, 1024).total, 1251 * 90);
  recipe.data.order.remainder = data::Remainder::kCarry;
  EXPECT_EQ(count_steps(recipe, 1281167, 1024).total, 112603);
}

TEST(Steps, TracedStepsBehindTheLastAreTold) {
  Recipe recipe;
  StepCounts counts;
  counts.total = 6;
  const auto told = [&](const char* trace) {
    recipe.run.trace = trace;
    return trace_warning(recipe, counts);
  };
  EXPECT_EQ(told(""), "");
  EXPECT_EQ(told("6"), "");
  EXPECT_EQ(told("5:200"),
            "[recipe.trace] run.trace = \"5:200\": the run ends at step 6, so steps after 6 are not traced");
  EXPECT_EQ(told("7:8"), "[recipe.trace] run.trace = \"7:8\": the run ends at step 6, so no step is traced");
}

Recipe scheduled(const std::string& name) {
  Recipe recipe;
  recipe.optimizer.lr = 1.0;
  recipe.schedule.name = name;
  recipe.schedule.warmup_from = 0.2;
  recipe.schedule.min_lr = 0.1;
  return recipe;
}

TEST(LearningRate, WarmupThenCosine) {
  const Recipe recipe = scheduled("cosine");
  const StepCounts counts{10, 14, 4};
  EXPECT_DOUBLE_EQ(learning_rate(recipe, counts, 0), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(recipe, counts, 1), 0.4);
  EXPECT_DOUBLE_EQ(learning_rate(recipe, counts, 3), 0.8);
  EXPECT_DOUBLE_EQ(learning_rate(recipe, counts, 4), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(recipe, counts, 9), 0.55);
  EXPECT_DOUBLE_EQ(learning_rate(recipe, counts, 13), 0.1 + 0.9 * 0.5 * (1 + std::cos(M_PI * 0.9)));
  EXPECT_DOUBLE_EQ(learning_rate(recipe, counts, 14), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(recipe, counts, 1000), 0.1);
}

TEST(LearningRate, LinearAndConstant) {
  const StepCounts counts{10, 14, 4};
  EXPECT_DOUBLE_EQ(learning_rate(scheduled("linear"), counts, 9), 0.55);
  EXPECT_DOUBLE_EQ(learning_rate(scheduled("linear"), counts, 14), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(scheduled("constant"), counts, 13), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(scheduled("constant"), counts, 2), 0.6);
}

TEST(LearningRate, WithoutWarmupAndWithNothingElse) {
  EXPECT_DOUBLE_EQ(learning_rate(scheduled("cosine"), {10, 10, 0}, 0), 1.0);
  // A run shorter than its warmup.
  EXPECT_DOUBLE_EQ(learning_rate(scheduled("cosine"), {10, 2, 4}, 1), 0.4);
  // A run that is all warmup.
  EXPECT_DOUBLE_EQ(learning_rate(scheduled("cosine"), {10, 4, 4}, 3), 0.8);
}

// 480 images: 20 steps of 24 an epoch, 10 steps of 48. After 10 steps of 24 half an epoch is done.
TEST(Schedule, ANewBatchKeepsItsPlaceInEpochs) {
  Recipe recipe = scheduled("cosine");
  recipe.train.steps = 0;
  recipe.train.epochs = 4;
  recipe.schedule.warmup_steps = 0;
  recipe.schedule.warmup_epochs = 1;
  const StepCounts before = count_steps(recipe, 480, 24), anew = count_steps(recipe, 480, 48);
  const StepCounts after = counts_after_resume(recipe, anew, 10, 5);
  EXPECT_EQ(after.total, 45);  // 0.5 epochs are 10 steps, 3.5 epochs 35
  for (int64_t step = 10; step < 45; ++step) {
    EXPECT_DOUBLE_EQ(learning_rate(recipe, after, step), learning_rate(recipe, before, 10 + 2 * (step - 10)))
        << step;
  }
  recipe.train.epochs = 0;
  recipe.train.steps = 60;  // given in steps: neither the end nor the warmup moves
  recipe.schedule.warmup_epochs = 0;
  recipe.schedule.warmup_steps = 20;
  const StepCounts by_steps = counts_after_resume(recipe, count_steps(recipe, 480, 48), 10, 5);
  EXPECT_EQ(by_steps.total, 60);
  for (int64_t step = 10; step < 60; ++step) {
    EXPECT_DOUBLE_EQ(learning_rate(recipe, by_steps, step),
                     learning_rate(recipe, count_steps(recipe, 480, 24), step));
  }
}

StepCounts counts_of(int64_t total, int64_t warmup, int64_t cooldown, int64_t interval = 1) {
  StepCounts counts{10, total, warmup};
  counts.cooldown = cooldown;
  counts.interval = interval;
  return counts;
}

// timm 1.0.31: StepLRScheduler(optimizer with lr 0.4, decay_t=30, decay_rate=0.1, warmup_t=5,
// warmup_lr_init=0.1, warmup_prefix=False), epochs as steps.
TEST(LearningRate, StepIsTimms) {
  Recipe recipe = scheduled("step");
  recipe.optimizer.lr = 0.4;
  recipe.schedule.warmup_from = 0.1;
  recipe.schedule.min_lr = 0;
  recipe.schedule.factor = 0.1;
  const StepCounts counts = counts_of(100, 5, 0, 30);
  const std::vector<std::pair<int64_t, double>> timm = {{0, 0.1},   {4, 0.34},   {5, 0.4},    {29, 0.4},
                                                        {30, 0.04}, {60, 0.004}, {89, 0.004}, {90, 0.0004}};
  for (const auto& [step, rate] : timm) EXPECT_NEAR(learning_rate(recipe, counts, step), rate, 1e-15) << step;
  recipe.schedule.min_lr = 0.01;
  EXPECT_DOUBLE_EQ(learning_rate(recipe, counts, 89), 0.01);
}

// timm 1.0.31, epochs as steps, with lr 1 and as DeiT calls it (warmup_prefix is off unless asked for):
//   create_scheduler_v2(optimizer, sched='cosine', num_epochs=20, cooldown_epochs=5, min_lr=0.1,
//   warmup_lr=0.2,
//                       warmup_epochs=4)[0]._get_lr(t)
TEST(LearningRate, CosineAroundTheWarmupIsTimms) {
  Recipe recipe = scheduled("cosine");
  recipe.schedule.warmup_inside = true;
  const StepCounts counts = counts_of(25, 4, 5);
  const std::vector<std::pair<int64_t, double>> timm = {{0, 0.2},
                                                        {3, 0.8},
                                                        {4, 0.9140576474687263},
                                                        {5, 0.8681980515339464},
                                                        {10, 0.55},
                                                        {15, 0.23180194846605365},
                                                        {19, 0.10554024673218806},
                                                        {20, 0.1},
                                                        {24, 0.1}};
  for (const auto& [step, rate] : timm) EXPECT_NEAR(learning_rate(recipe, counts, step), rate, 1e-15) << step;
  // With warmup_prefix=True, which lengthens its run to 24 of these, it is the curve that begins after the
  // warmup.
  recipe.schedule.warmup_inside = false;
  const std::vector<std::pair<int64_t, double>> after = {
      {3, 0.8}, {4, 1.0}, {5, 0.994459753267812}, {19, 0.23180194846605365}, {23, 0.10554024673218806},
      {24, 0.1}};
  for (const auto& [step, rate] : after)
    EXPECT_NEAR(learning_rate(recipe, counts_of(24, 4, 0), step), rate, 1e-15) << step;
  recipe = scheduled("linear");
  recipe.schedule.warmup_inside = true;
  EXPECT_DOUBLE_EQ(learning_rate(recipe, counts_of(25, 4, 5), 5), 1 - 0.9 * 5 / 20);
}

// big_vision's formula with timescale 10 and a cooldown of 20 of 100 steps.
TEST(LearningRate, RsqrtWithCooldownIsBigVisions) {
  Recipe recipe = scheduled("rsqrt");
  recipe.schedule.warmup_from = recipe.schedule.min_lr = 0;
  recipe.schedule.timescale = 10;
  const StepCounts counts = counts_of(100, 5, 20);
  EXPECT_DOUBLE_EQ(learning_rate(recipe, counts, 4), 0.8);
  for (const int64_t step : {5, 6, 50, 80, 81, 99, 100, 101}) {
    const double decayed = 1 / std::sqrt(1 + static_cast<double>(step - 5) / 10);
    const double left = std::max(0.0, std::min(1.0, (100 - static_cast<double>(step)) / 20));
    EXPECT_DOUBLE_EQ(learning_rate(recipe, counts, step), decayed * left) << step;
  }
  recipe.schedule.min_lr = 0.5;
  EXPECT_DOUBLE_EQ(learning_rate(recipe, counts, 75), 0.5);
}

TEST(LearningRate, Cooldown) {
  EXPECT_DOUBLE_EQ(learning_rate(scheduled("constant"), counts_of(14, 4, 4), 10), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(scheduled("constant"), counts_of(14, 4, 4), 12), 0.55);
  EXPECT_DOUBLE_EQ(learning_rate(scheduled("constant"), counts_of(14, 4, 4), 14), 0.1);
  for (const char* name : {"cosine", "linear"}) {
    // Arrived after 14 of 20 steps, as without the cooldown after 14 of 14.
    for (int64_t step = 0; step < 20; ++step) {
      EXPECT_DOUBLE_EQ(learning_rate(scheduled(name), counts_of(20, 4, 6), step),
                       learning_rate(scheduled(name), counts_of(14, 4, 0), step));
    }
    EXPECT_DOUBLE_EQ(learning_rate(scheduled(name), counts_of(20, 4, 6), 14), 0.1);
  }
}

TEST(LearningRate, LengthsInEpochsOrSteps) {
  Recipe recipe = scheduled("step");
  recipe.train.epochs = 10;
  recipe.schedule.step_epochs = 3;
  recipe.schedule.cooldown_epochs = 0.5;
  StepCounts counts = count_steps(recipe, 1050, 100);
  EXPECT_EQ(counts.interval, 30);
  EXPECT_EQ(counts.cooldown, 5);
  recipe.schedule.step_epochs = recipe.schedule.cooldown_epochs = 0;
  recipe.schedule.step_steps = 7;
  recipe.schedule.cooldown_steps = 8;
  counts = count_steps(recipe, 1050, 100);
  EXPECT_EQ(counts.interval, 7);
  EXPECT_EQ(counts.cooldown, 8);
}

// 0.29 x 100 is 28.999999999999996 in double, and 1.5 steps are 2: cut off, every one of these would lose a
// step.
TEST(Steps, FractionsOfAnEpochAreRoundedToTheNearestStep) {
  Recipe recipe = scheduled("step");
  recipe.train.epochs = 0.29;
  recipe.schedule.warmup_epochs = 0.015;
  recipe.schedule.cooldown_epochs = 0.57;
  recipe.schedule.step_epochs = 0.028;
  const StepCounts counts = count_steps(recipe, 1000, 10);
  EXPECT_EQ(counts.steps_per_epoch, 100);
  EXPECT_EQ(counts.total, 29);
  EXPECT_EQ(counts.warmup, 2);
  EXPECT_EQ(counts.cooldown, 57);
  EXPECT_EQ(counts.interval, 3);
}

TEST(LearningRate, IsScaledToTheBatch) {
  Recipe recipe = scheduled("constant");
  recipe.train.steps = 10;
  EXPECT_EQ(count_steps(recipe, 5000, 1024).lr_factor, 1);
  recipe.optimizer.lr_scale = "linear";
  EXPECT_EQ(count_steps(recipe, 5000, 1024).lr_factor, 4);
  recipe.optimizer.lr_batch = 512;
  EXPECT_EQ(count_steps(recipe, 5000, 1024).lr_factor, 2);
  recipe.optimizer.lr_scale = "sqrt";
  recipe.optimizer.lr_batch = 256;
  const StepCounts counts = count_steps(recipe, 5000, 1024);
  EXPECT_EQ(counts.lr_factor, 2);
  EXPECT_DOUBLE_EQ(learning_rate(recipe, counts, 3), 2.0);
  recipe.schedule.name = "cosine";
  recipe.schedule.min_lr = 0.5;
  EXPECT_EQ(error_text([&] { count_steps(recipe, 5000, 32); }),
            "[recipe.count_steps] schedule.min_lr is 0.5: expected at most 0.353553, the learning rate "
            "scaled to batch 32");
}

TEST(Kept, NumbersOfEveryOptimizer) {
  const auto kept = [](const std::string& keys) { return kept_numbers(read(keys)); };
  for (const char* two : {"adamw", "adam", "lamb"})
    EXPECT_EQ(kept(concat("optimizer.name = '", two, "'")), 2);
  for (const char* one : {"sgd", "lars", "lion", "adafactor", "muon"}) {
    EXPECT_EQ(kept(concat("optimizer.name = '", one, "'")), 1) << one;
  }
  EXPECT_EQ(kept("optimizer.name = 'sgd'\noptimizer.momentum = 0"), 0);
  EXPECT_EQ(kept("optimizer.name = 'lion'\noptimizer.momentum = 0"), 1);
  EXPECT_EQ(kept("ema.decay = 0.9"), 3);
}

TEST(LearningRate, WhatFollowsFromTheOptimizersName) {
  EXPECT_EQ(read("optimizer.name = 'lion'").optimizer.beta2, 0.99);
  EXPECT_EQ(read("optimizer.name = 'lion'\noptimizer.beta2 = 0.9").optimizer.beta2, 0.9);
  EXPECT_EQ(read("optimizer.name = 'muon'").optimizer.momentum, 0.95);
  EXPECT_TRUE(read("optimizer.name = 'muon'").optimizer.nesterov);
  EXPECT_FALSE(read("optimizer.name = 'muon'\noptimizer.momentum = 0").optimizer.nesterov);
  EXPECT_FALSE(read("optimizer.name = 'sgd'").optimizer.nesterov);
}

TEST(LearningRate, DecayInTheGradientIsNoneUnlessGiven) {
  EXPECT_EQ(read("optimizer.name = 'sgd'").optimizer.weight_decay, 0);
  EXPECT_EQ(read("optimizer.name = 'adam'").optimizer.weight_decay, 0);
  EXPECT_EQ(read("optimizer.name = 'adamw'").optimizer.weight_decay, 0.05);
  EXPECT_EQ(read("optimizer.name = 'sgd'\noptimizer.weight_decay = 1e-4").optimizer.weight_decay, 1e-4);
}

std::string warned(std::vector<std::string> sets) {
  const Recipe recipe = read("", std::move(sets));
  const auto lines = schedule_warnings(recipe, count_steps(recipe, 1000, 10));
  return lines.empty() ? "none" : lines.front();
}

TEST(Warnings, AWarmupThatNeverEnds) {
  EXPECT_EQ(warned({}), "none");
  EXPECT_EQ(warned({"schedule.warmup_steps=9"}), "none");
  EXPECT_EQ(
      warned({"schedule.warmup_steps=20", "optimizer.lr=0.1"}),
      "[recipe.schedule] the warmup takes 20 steps and the run 10, so the learning rate ends at 0.045 and "
      "never reaches 0.1; set schedule.warmup_steps or warmup_epochs");
  EXPECT_EQ(
      warned({"schedule.warmup_steps=6", "schedule.cooldown_steps=5"}),
      "[recipe.schedule] the warmup takes 6 steps and the cooldown 5, more than the 10 steps of the run; "
      "set schedule.warmup_steps and cooldown_steps, or their _epochs");
}

TEST(Warnings, ALearningRateOfZero) {
  EXPECT_EQ(
      warned({"optimizer.lr=0"}),
      "[recipe.schedule] optimizer.lr = 0: the learning rate is 0 at every step, so training changes no "
      "parameter (set optimizer.lr; to evaluate only: tessera eval)");
  EXPECT_EQ(warned({"optimizer.lr=0", "schedule.warmup_steps=2", "schedule.warmup_from=0.1"}), "none");
  EXPECT_EQ(warned({"optimizer.lr=1e-9"}), "none");
}

TEST(Warnings, OutputsOfNoClass) {
  const Recipe recipe = read("[model]\nclasses = 12\n[data]\nsource = 'fake:5'");
  EXPECT_EQ(class_count_warning(recipe, 12), "");
  EXPECT_EQ(
      class_count_warning(recipe, 10),
      "[recipe.classes] model.classes is 12, but fake:5 has 10 classes, so 2 outputs belong to no class; set "
      "model.classes = 10 unless this is intended");
}

TEST(Warnings, HowToTrainOn) {
  EXPECT_EQ(how_to_train_on(read("")), "train.steps above 10, for example --set train.steps=20");
  EXPECT_EQ(how_to_train_on(read("", {"train.steps=0", "train.epochs=1.5"})),
            "train.epochs above 1.5, for example --set train.epochs=3");
}

}  // namespace
}  // namespace tessera::recipe
