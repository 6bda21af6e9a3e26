// SPDX-License-Identifier: Apache-2.0
// The rows of [optimizer], [schedule], [loss], [distill] and [ema] in the table of options.
#include "tessera/recipe/option_rows.h"

namespace tessera::recipe {
namespace {

void add_optimizer(std::vector<Option>& table) {
  const std::vector<Option> rows = {
      text("optimizer.name", "Optimizer; docs/optimizers.md has the formulas", TESSERA_FIELD(optimizer.name),
           {"adamw", "adam", "sgd", "lamb", "lars", "lion", "adafactor", "muon"}),
      number("optimizer.lr", "Learning rate after the warmup", {0, 1000}, TESSERA_FIELD(optimizer.lr)),
      text("optimizer.lr_scale", "Multiply lr by batch / lr_batch (linear) or by its square root (sqrt)",
           TESSERA_FIELD(optimizer.lr_scale), {"none", "linear", "sqrt"}),
      integer("optimizer.lr_batch", "Batch for which lr is meant; used with lr_scale linear and sqrt",
              {1, 1e9}, TESSERA_FIELD(optimizer.lr_batch)),
      number("optimizer.momentum", "Momentum of sgd, lars, adafactor and muon; 0: off", kRate,
             TESSERA_FIELD(optimizer.momentum)),
      flag("optimizer.nesterov", "Nesterov momentum of sgd, lars and muon",
           TESSERA_FIELD(optimizer.nesterov)),
      number("optimizer.beta1", "Decay rate of the running mean of gradients", kRate,
             TESSERA_FIELD(optimizer.beta1)),
      number("optimizer.beta2", "Decay rate of the running mean of squared gradients", kRate,
             TESSERA_FIELD(optimizer.beta2)),
      number("optimizer.epsilon", "Added to the square root of the mean square", {0, 1, true},
             TESSERA_FIELD(optimizer.epsilon)),
      number("optimizer.weight_decay",
             "on matrices only; times lr, but a part of the gradient for sgd, adam and lars (there 0 unless "
             "given)",
             {0, 1000}, TESSERA_FIELD(optimizer.weight_decay)),
      number("optimizer.trust", "Only for lars: trust coefficient (step length / norm of the matrix)",
             {0, 1000, true}, TESSERA_FIELD(optimizer.trust)),
      text("optimizer.no_decay", "what does not decay: auto: all but matrices and convolutions; or none",
           TESSERA_FIELD(optimizer.no_decay), {"auto", "none"}),
      number("optimizer.layer_decay", "Layer-wise learning rate decay (timm: layer_decay); 1: off",
             {0, 1, true}, TESSERA_FIELD(optimizer.layer_decay)),
      texts("optimizer.groups",
            "Settings of parameters by name: \"PATTERN: lr_scale=0.1, weight_decay=0, freeze\"",
            TESSERA_FIELD(optimizer.groups)),
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

void add_schedule(std::vector<Option>& table) {
  const std::vector<Option> rows = {
      text("schedule.name", "Shape of the learning rate after the warmup", TESSERA_FIELD(schedule.name),
           {"cosine", "linear", "step", "rsqrt", "constant"}),
      number("schedule.warmup_epochs",
             "Epochs of linear warmup from warmup_from to lr, an alternative to warmup_steps; 0: not given",
             {0, 1e9}, TESSERA_FIELD(schedule.warmup_epochs)),
      integer("schedule.warmup_steps",
              "Steps of linear warmup, an alternative to warmup_epochs; 0: not given", kCount,
              TESSERA_FIELD(schedule.warmup_steps)),
      number("schedule.warmup_from", "Learning rate of the first step of the warmup", {0, 1000},
             TESSERA_FIELD(schedule.warmup_from)),
      flag("schedule.warmup_inside",
           "Count the steps of cosine and linear from step 0 instead of from the end of the warmup",
           TESSERA_FIELD(schedule.warmup_inside)),
      number("schedule.min_lr",
             "Smallest learning rate: the end of cosine and linear, a lower bound of step and rsqrt",
             {0, 1000}, TESSERA_FIELD(schedule.min_lr)),
      number("schedule.step_epochs",
             "Only for step: epochs between two drops, an alternative to step_steps; 0: not given", {0, 1e9},
             TESSERA_FIELD(schedule.step_epochs)),
      integer("schedule.step_steps",
              "Only for step: steps between two drops, an alternative to step_epochs; 0: not given", kCount,
              TESSERA_FIELD(schedule.step_steps)),
      number("schedule.factor", "Only for step: factor of each drop of the learning rate", {0, 1, true},
             TESSERA_FIELD(schedule.factor)),
      integer("schedule.timescale", "Only for rsqrt: lr / sqrt(1 + steps after warmup / timescale)",
              {1, 1e12}, TESSERA_FIELD(schedule.timescale)),
      number("schedule.cooldown_epochs",
             "Epochs at the end at min_lr (cosine, linear) or falling to it; 0: none, or cooldown_steps",
             {0, 1e9}, TESSERA_FIELD(schedule.cooldown_epochs)),
      integer("schedule.cooldown_steps",
              "Steps of the cooldown, an alternative to cooldown_epochs; 0: not given", kCount,
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
      number("ema.decay", "Decay of the moving average of the weights (timm: model_ema_decay); 0: off", kRate,
             TESSERA_FIELD(ema.decay)),
      flag("ema.warmup", "Limit the decay at update t to 1 - t^(-2/3)", TESSERA_FIELD(ema.warmup)),
      integer("ema.every", "Steps between updates of the average", {1, 1e9}, TESSERA_FIELD(ema.every)),
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
