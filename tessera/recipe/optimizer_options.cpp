// SPDX-License-Identifier: Apache-2.0
// The rows of [optimizer], [schedule], [loss], [distill] and [ema] in the table of options.
#include "tessera/recipe/option_rows.h"

namespace tessera::recipe {
namespace {

void add_optimizer(std::vector<Option>& table) {
  const std::vector<Option> rows = {
      text("optimizer.name", "Optimizer (timm: --opt); docs/optimizers.md has the formulas",
           TESSERA_FIELD(optimizer.name),
           {"adamw", "adam", "sgd", "lamb", "lars", "lion", "adafactor", "muon"}),
      number("optimizer.lr",
             "Learning rate after warmup, before the schedule lowers it; lr_scale may multiply it", {0, 1000},
             TESSERA_FIELD(optimizer.lr)),
      text("optimizer.lr_scale",
           "Multiply lr by batch / lr_batch (linear) or its square root (sqrt); none = use lr unchanged",
           TESSERA_FIELD(optimizer.lr_scale), {"none", "linear", "sqrt"}),
      integer(
          "optimizer.lr_batch",
          "Only for lr_scale: batch in images over all ranks for which lr is meant (timm: --lr-base-size)",
          {1, 1e9}, TESSERA_FIELD(optimizer.lr_batch)),
      number("optimizer.momentum",
             "Momentum of sgd, lars, adafactor and muon (muon's default is 0.95); 0 = off", kRate,
             TESSERA_FIELD(optimizer.momentum)),
      flag("optimizer.nesterov", "Use Nesterov momentum in sgd, lars and muon (muon's default is true)",
           TESSERA_FIELD(optimizer.nesterov)),
      number("optimizer.beta1",
             "Mean-of-gradients decay (PyTorch: betas[0]); lion: mix in the sign; muon: only its adamw "
             "parameters",
             kRate, TESSERA_FIELD(optimizer.beta1)),
      number("optimizer.beta2",
             "Decay rate of the mean of squared gradients (PyTorch: betas[1]); lion's default is 0.99", kRate,
             TESSERA_FIELD(optimizer.beta2)),
      number("optimizer.epsilon",
             "Epsilon added to the root mean square gradient in adamw, adam, lamb and muon (PyTorch: eps)",
             {0, 1, true}, TESSERA_FIELD(optimizer.epsilon)),
      number("optimizer.weight_decay",
             "Weight decay, decoupled as in AdamW; for sgd, adam and lars an L2 penalty with default 0",
             {0, 1000}, TESSERA_FIELD(optimizer.weight_decay)),
      number("optimizer.trust",
             "Only for name = \"lars\": trust coefficient, update norm / weight norm (timm: trust_coeff)",
             {0, 1000, true}, TESSERA_FIELD(optimizer.trust)),
      text(
          "optimizer.no_decay",
          "Parameters without weight decay: auto = biases, norms, tokens and positions; none = no exceptions",
          TESSERA_FIELD(optimizer.no_decay), {"auto", "none"}),
      number("optimizer.layer_decay",
             "Learning rate of each layer relative to that of the next (timm: --layer-decay); 1 = off",
             {0, 1, true}, TESSERA_FIELD(optimizer.layer_decay)),
      texts("optimizer.groups",
            "Per parameter name (shell pattern): [\"head.*: lr_scale=10, weight_decay=0, freeze\"]; last "
            "match wins",
            TESSERA_FIELD(optimizer.groups)),
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

void add_schedule(std::vector<Option>& table) {
  const std::vector<Option> rows = {
      text("schedule.name",
           "Learning rate schedule after warmup (timm: --sched); docs/optimizers.md has the formulas",
           TESSERA_FIELD(schedule.name), {"cosine", "linear", "step", "rsqrt", "constant"}),
      number("schedule.warmup_epochs",
             "Length of linear warmup in epochs (timm: --warmup-epochs); 0 = use warmup_steps or none",
             {0, 1e9}, TESSERA_FIELD(schedule.warmup_epochs)),
      integer("schedule.warmup_steps",
              "Length of linear warmup in optimizer steps; 0 = use warmup_epochs or none", kCount,
              TESSERA_FIELD(schedule.warmup_steps)),
      number("schedule.warmup_from", "Learning rate at step 0, from which warmup rises (timm: --warmup-lr)",
             {0, 1000}, TESSERA_FIELD(schedule.warmup_from)),
      flag("schedule.warmup_inside",
           "Count cosine and linear from step 0 (timm without --warmup-prefix); false = from the end of "
           "warmup",
           TESSERA_FIELD(schedule.warmup_inside)),
      number("schedule.min_lr",
             "Lowest learning rate: end of cosine and linear, lower bound of step and rsqrt (timm: --min-lr)",
             {0, 1000}, TESSERA_FIELD(schedule.min_lr)),
      number("schedule.step_epochs",
             "Only for name = \"step\": epochs between rate drops (timm: --decay-epochs); 0 = use step_steps",
             {0, 1e9}, TESSERA_FIELD(schedule.step_epochs)),
      integer("schedule.step_steps",
              "Only for name = \"step\": optimizer steps between learning rate drops; 0 = use step_epochs",
              kCount, TESSERA_FIELD(schedule.step_steps)),
      number("schedule.factor",
             "Only for name = \"step\": factor of the learning rate at each drop (timm: --decay-rate)",
             {0, 1, true}, TESSERA_FIELD(schedule.factor)),
      integer("schedule.timescale",
              "Only for name = \"rsqrt\": number of steps T in lr / sqrt(1 + steps since warmup / T)",
              {1, 1e12}, TESSERA_FIELD(schedule.timescale)),
      number("schedule.cooldown_epochs",
             "Cooldown: last epochs at min_lr (cosine, linear) or falling to it; 0 = cooldown_steps or none",
             {0, 1e9}, TESSERA_FIELD(schedule.cooldown_epochs)),
      integer("schedule.cooldown_steps",
              "Cooldown: last steps at min_lr (cosine, linear) or falling to it; 0 = cooldown_epochs or none",
              kCount, TESSERA_FIELD(schedule.cooldown_steps)),
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

void add_loss_and_average(std::vector<Option>& table) {
  const std::vector<Option> rows = {
      text("loss.name",
           "Loss: cross entropy (ce), or binary cross entropy with mean (bce) or sum (sigmoid) over classes",
           TESSERA_FIELD(loss.name), {"ce", "bce", "sigmoid"}),
      number(
          "loss.threshold",
          "Only for bce and sigmoid loss: targets above this become 1, others 0; below 0 = targets unchanged",
          {-1, 1}, TESSERA_FIELD(loss.threshold)),
      path("distill.teacher",
           "Teacher to learn from: run folder, checkpoint folder or weights file of a ViT; \"\" = none",
           TESSERA_FIELD(distill.teacher)),
      text("distill.kind",
           "Distillation target: the teacher's probabilities (soft) or its predicted class (hard)",
           TESSERA_FIELD(distill.kind), {"soft", "hard"}),
      number("distill.alpha",
             "Weight of the distillation loss; the loss of the labels has weight 1 - alpha (DeiT)", {0, 1},
             TESSERA_FIELD(distill.alpha)),
      number("distill.temperature",
             "Only for kind = \"soft\": divisor of teacher and student logits; the loss is multiplied by its "
             "square",
             {0, 1000, true}, TESSERA_FIELD(distill.temperature)),
      number(
          "ema.decay",
          "Decay of the moving average of the weights per update (timm: --model-ema-decay); 0 = no average",
          kRate, TESSERA_FIELD(ema.decay)),
      flag("ema.warmup",
           "Limit the decay at update t to 1 - t^(-2/3), for a faster start (timm: --model-ema-warmup)",
           TESSERA_FIELD(ema.warmup)),
      integer("ema.every", "Optimizer steps between updates of the moving average of the weights", {1, 1e9},
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
