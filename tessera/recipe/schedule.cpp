// SPDX-License-Identifier: Apache-2.0
// Batch sizes, numbers of steps, learning rates.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "tessera/base/error.h"
#include "tessera/recipe/recipe.h"

namespace tessera::recipe {
namespace {

constexpr const char* kBatch = "recipe.resolve_batch";

/// Micro-batches of `share` images, which must divide `batch`.
int64_t divide(int64_t batch, int64_t share, const std::string& what) {
  if (batch % share == 0) return batch / share;
  const int64_t below = batch / share * share;
  const std::string near = below > 0 ? concat(below, " and ", below + share) : std::to_string(share);
  user_error({.where = kBatch,
              .problem = concat("train.batch is ", batch),
              .expected = concat("a multiple of ", what),
              .hint = concat("nearest: ", near, "; without train.batch_per_rank any batch is allowed")});
}

std::string ranks_text(int64_t world) { return concat(world, world == 1 ? " rank" : " ranks"); }

void check_numbers(const TrainRecipe& train, int64_t world) {
  TESSERA_CHECK(world >= 1, "world ", world);
  if (train.batch < 0 || train.batch_per_rank < 0 || train.accumulation < 0) {
    user_error({.where = kBatch,
                .problem = concat("train.batch, train.batch_per_rank and train.accumulation are ",
                                  train.batch, ", ", train.batch_per_rank, " and ", train.accumulation),
                .expected = "values of at least 0"});
  }
  if (train.batch == 0 && train.batch_per_rank == 0) {
    user_error({.where = kBatch,
                .problem = "the batch size is not given",
                .expected = "train.batch or train.batch_per_rank above 0"});
  }
  const double product = static_cast<double>(world) *
                         static_cast<double>(std::max<int64_t>(train.accumulation, 1)) *
                         static_cast<double>(std::max<int64_t>(train.batch_per_rank, 1));
  if (product > 1e15) {
    user_error({.where = kBatch,
                .problem = concat("the global batch is train.batch_per_rank ", train.batch_per_rank, " x ",
                                  ranks_text(world), " x train.accumulation ", train.accumulation),
                .expected = "at most 1e15 images"});
  }
}

double lr_factor(const OptimizerRecipe& optimizer, int64_t batch) {
  const double ratio = static_cast<double>(batch) / static_cast<double>(optimizer.lr_batch);
  if (optimizer.lr_scale == "none") return 1;
  return optimizer.lr_scale == "linear" ? ratio : std::sqrt(ratio);
}

}  // namespace

BatchSizes resolve_batch(const TrainRecipe& train, int64_t world) {
  check_numbers(train, world);
  BatchSizes sizes{train.batch, train.batch_per_rank, std::max<int64_t>(train.accumulation, 1)};
  const int64_t share = world * sizes.accumulation;
  if (sizes.batch == 0) {
    sizes.batch = sizes.per_rank * share;
  } else if (sizes.per_rank == 0) {
    sizes.per_rank = (sizes.batch + share - 1) / share;
  } else if (train.accumulation == 0) {
    const int64_t micro_batch = world * sizes.per_rank;
    sizes.accumulation =
        divide(sizes.batch, micro_batch,
               concat(ranks_text(world), " x batch_per_rank ", sizes.per_rank, " = ", micro_batch));
  } else if (sizes.batch != sizes.per_rank * share) {
    user_error({.where = kBatch,
                .problem = concat("train.batch is ", sizes.batch),
                .expected = concat("train.batch_per_rank x ranks x train.accumulation = ", sizes.per_rank,
                                   " x ", world, " x ", sizes.accumulation, " = ", sizes.per_rank * share),
                .hint = "give any two of the three settings"});
  }
  return sizes;
}

StepCounts count_steps(const Recipe& recipe, int64_t train_samples, int64_t batch) {
  TESSERA_CHECK(batch >= 1, "batch ", batch);
  StepCounts counts;
  const data::Remainder remainder = recipe.data.order.remainder;
  if (remainder == data::Remainder::kDrop && train_samples < batch) {
    user_error(
        {.where = "recipe.count_steps",
         .problem = concat("the training set has ", train_samples, train_samples == 1 ? " image" : " images"),
         .expected = concat("at least one batch (", batch, " images)"),
         .hint = "reduce train.batch"});
  }
  counts.steps_per_epoch = data::steps_per_epoch(train_samples, batch, remainder);
  const auto steps = [&](double epochs) {
    return static_cast<int64_t>(std::llround(std::min(epochs * counts.steps_per_epoch, 1e15)));
  };
  const auto length = [&](int64_t given, double epochs) { return given > 0 ? given : steps(epochs); };
  const ScheduleRecipe& schedule = recipe.schedule;
  counts.total = std::max<int64_t>(length(recipe.train.steps, recipe.train.epochs), 1);
  counts.warmup = length(schedule.warmup_steps, schedule.warmup_epochs);
  counts.cooldown = length(schedule.cooldown_steps, schedule.cooldown_epochs);
  counts.interval = std::max<int64_t>(length(schedule.step_steps, schedule.step_epochs), 1);
  counts.lr_factor = lr_factor(recipe.optimizer, batch);
  const double lr = recipe.optimizer.lr * counts.lr_factor;
  if (recipe.optimizer.lr_scale != "none" && schedule.name != "constant" && schedule.min_lr > lr) {
    user_error({.where = "recipe.count_steps",
                .problem = concat("schedule.min_lr is ", schedule.min_lr),
                .expected = concat("at most ", lr, ", the learning rate scaled to batch ", batch)});
  }
  return counts;
}

StepCounts counts_after_resume(const Recipe& recipe, StepCounts counts, int64_t step, int64_t same_as) {
  counts.begin = step - same_as;
  if (recipe.train.steps == 0) counts.total += counts.begin;
  const bool by_epochs = recipe.train.steps == 0 || recipe.schedule.warmup_epochs > 0;
  if (recipe.schedule.warmup_steps == 0 && by_epochs) counts.warmup += counts.begin;
  return counts;
}

namespace {

/// Of a step after the warmup, without the cooldown.
double decayed_rate(const Recipe& recipe, const StepCounts& counts, double lr, int64_t step) {
  const ScheduleRecipe& schedule = recipe.schedule;
  const double least = schedule.min_lr, since = static_cast<double>(step - counts.warmup);
  if (schedule.name == "constant") return lr;
  if (schedule.name == "step") {
    const int64_t since_begin = step - (schedule.step_steps > 0 ? 0 : counts.begin);
    return std::max(least,
                    lr * std::pow(schedule.factor, static_cast<double>(since_begin / counts.interval)));
  }
  if (schedule.name == "rsqrt") {
    return std::max(least, lr / std::sqrt(1.0 + since / static_cast<double>(schedule.timescale)));
  }
  const int64_t begin_of_run = recipe.train.steps > 0 ? 0 : counts.begin;
  const int64_t begin = schedule.warmup_inside ? begin_of_run : counts.warmup;
  const auto length = static_cast<double>(std::max<int64_t>(counts.total - begin - counts.cooldown, 1));
  const double progress = std::min(static_cast<double>(step - begin) / length, 1.0);
  if (schedule.name == "linear") return lr + (least - lr) * progress;
  TESSERA_CHECK(schedule.name == "cosine", "schedule ", schedule.name);
  return least + (lr - least) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace

double kept_numbers(const Recipe& recipe) {
  const OptimizerRecipe& optimizer = recipe.optimizer;
  const double average = recipe.ema.decay > 0 ? 1 : 0;
  const std::string& name = optimizer.name;
  if (name == "adamw" || name == "adam" || name == "lamb") return 2 + average;
  return (optimizer.momentum > 0 || name == "lion" || name == "muon" ? 1 : 0) + average;
}

double learning_rate(const Recipe& recipe, const StepCounts& counts, int64_t step) {
  const ScheduleRecipe& schedule = recipe.schedule;
  const double lr = recipe.optimizer.lr * counts.lr_factor, from = schedule.warmup_from;
  if (step < counts.warmup) {
    const int64_t begin = schedule.warmup_steps > 0 ? 0 : counts.begin;
    return from +
           (lr - from) * static_cast<double>(step - begin) / static_cast<double>(counts.warmup - begin);
  }
  const double rate = decayed_rate(recipe, counts, lr, step);
  const int64_t left = std::max<int64_t>(counts.total - step, 0);
  if (left >= counts.cooldown || schedule.name == "cosine" || schedule.name == "linear") return rate;
  return schedule.min_lr +
         (rate - schedule.min_lr) * static_cast<double>(left) / static_cast<double>(counts.cooldown);
}

}  // namespace tessera::recipe
