// SPDX-License-Identifier: Apache-2.0
// The rows of [optimizer], [schedule], [loss], [distill] and [ema] in the table of options.
#include "tessera/recipe/option_rows.h"

namespace tessera::recipe {
namespace {

void add_optimizer(std::vector<Option>& table) {
  const std::vector<Option> rows = {
      text("optimizer.name", "what makes steps of gradients: docs/optimizers.md has the formulas",
           TESSERA_FIELD(optimizer.name),
           {"adamw", "adam", "sgd", "lamb", "lars", "lion", "adafactor", "muon"}),
      number("optimizer.lr", "learning rate after warmup", {0, 1000}, TESSERA_FIELD(optimizer.lr)),
      text("optimizer.lr_scale", "lr times batch / lr_batch, or times the root of that",
           TESSERA_FIELD(optimizer.lr_scale), {"none", "linear", "sqrt"}),
      integer("optimizer.lr_batch", "batch for which lr is meant, where lr_scale is not none", {1, 1e9},
              TESSERA_FIELD(optimizer.lr_batch)),
      number("optimizer.momentum", "of sgd, lars, adafactor and muon; 0: none", kRate,
             TESSERA_FIELD(optimizer.momentum)),
      flag("optimizer.nesterov", "sgd, lars and muon look ahead along their momentum",
           TESSERA_FIELD(optimizer.nesterov)),
      number("optimizer.beta1", "decay of the mean gradient", kRate, TESSERA_FIELD(optimizer.beta1)),
      number("optimizer.beta2", "decay of the mean square", kRate, TESSERA_FIELD(optimizer.beta2)),
      number("optimizer.epsilon", "added to the root of the mean square", {0, 1, true},
             TESSERA_FIELD(optimizer.epsilon)),
      number("optimizer.weight_decay",
             "on matrices only; times lr, but a part of the gradient for sgd, adam and lars (there 0 unless "
             "given)",
             {0, 1000}, TESSERA_FIELD(optimizer.weight_decay)),
      number("optimizer.trust", "lars: length of a matrix's step, as a share of the matrix's own norm",
             {0, 1000, true}, TESSERA_FIELD(optimizer.trust)),
      text("optimizer.no_decay", "what does not decay: auto: all but matrices and convolutions; or none",
           TESSERA_FIELD(optimizer.no_decay), {"auto", "none"}),
      number("optimizer.layer_decay", "lr of a unit as a share of the next one's; 1: all alike", {0, 1, true},
             TESSERA_FIELD(optimizer.layer_decay)),
      texts("optimizer.groups",
            "parameters treated otherwise: \"PATTERN: lr_scale=0.1, weight_decay=0, freeze\"",
            TESSERA_FIELD(optimizer.groups)),
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

void add_schedule(std::vector<Option>& table) {
  const std::vector<Option> rows = {
      text("schedule.name", "of the learning rate after warmup", TESSERA_FIELD(schedule.name),
           {"cosine", "linear", "step", "rsqrt", "constant"}),
      number("schedule.warmup_epochs", "linear from warmup_from to lr; this or warmup_steps", {0, 1e9},
             TESSERA_FIELD(schedule.warmup_epochs)),
      integer("schedule.warmup_steps", "this or warmup_epochs", kCount, TESSERA_FIELD(schedule.warmup_steps)),
      number("schedule.warmup_from", "learning rate of the first step", {0, 1000},
             TESSERA_FIELD(schedule.warmup_from)),
      flag("schedule.warmup_inside", "cosine, linear: counted from step 0, not from the end of the warmup",
           TESSERA_FIELD(schedule.warmup_inside)),
      number("schedule.min_lr", "where cosine and linear end; step and rsqrt do not fall below", {0, 1000},
             TESSERA_FIELD(schedule.min_lr)),
      number("schedule.step_epochs", "step: between two drops; this or step_steps", {0, 1e9},
             TESSERA_FIELD(schedule.step_epochs)),
      integer("schedule.step_steps", "this or step_epochs", kCount, TESSERA_FIELD(schedule.step_steps)),
      number("schedule.factor", "step: what a drop multiplies the learning rate by", {0, 1, true},
             TESSERA_FIELD(schedule.factor)),
      integer("schedule.timescale", "rsqrt: lr / sqrt(1 + steps after warmup / timescale)", {1, 1e12},
              TESSERA_FIELD(schedule.timescale)),
      number("schedule.cooldown_epochs",
             "the end: cosine and linear stay at min_lr, the others fall to it; this or cooldown_steps",
             {0, 1e9}, TESSERA_FIELD(schedule.cooldown_epochs)),
      integer("schedule.cooldown_steps", "this or cooldown_epochs", kCount,
              TESSERA_FIELD(schedule.cooldown_steps)),
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

void add_loss_and_average(std::vector<Option>& table) {
  const std::vector<Option> rows = {
      text("loss.name",
           "cross entropy, or each class on its own: bce the mean over classes (DeiT III), sigmoid their sum "
           "(big_vision)",
           TESSERA_FIELD(loss.name), {"ce", "bce", "sigmoid"}),
      number("loss.threshold",
             "bce, sigmoid: targets above it count as 1, others as 0; below 0: targets as they are", {-1, 1},
             TESSERA_FIELD(loss.threshold)),
      path("distill.teacher",
           "a trained network to learn from: a run, a checkpoint, or a file of a ViT; empty: none",
           TESSERA_FIELD(distill.teacher)),
      text("distill.kind", "soft: its probabilities are the target; hard: its first choice is",
           TESSERA_FIELD(distill.kind), {"soft", "hard"}),
      number("distill.alpha", "its share of the loss", {0, 1}, TESSERA_FIELD(distill.alpha)),
      number("distill.temperature", "soft: divides the logits of both; the loss is times its square",
             {0, 1000, true}, TESSERA_FIELD(distill.temperature)),
      number("ema.decay", "of the moving average of the weights; 0: none", kRate, TESSERA_FIELD(ema.decay)),
      flag("ema.warmup", "at update t the decay is at most 1 - t^(-2/3)", TESSERA_FIELD(ema.warmup)),
      integer("ema.every", "steps from one update of the average to the next", {1, 1e9},
              TESSERA_FIELD(ema.every)),
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

}  // namespace

void add_optimizer_options(std::vector<Option>& table) {
  add_optimizer(table);
  add_schedule(table);
  add_loss_and_average(table);
}

}  // namespace tessera::recipe
