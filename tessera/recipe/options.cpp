// SPDX-License-Identifier: Apache-2.0
// The table of every option: key, field, range or choices, help. It alone decides which TOML keys there are,
// what --set takes, what --help says and what a saved recipe holds. Those of [model]: model_options.cpp; of
// [data]: data_options.cpp; of [optimizer], [schedule], [loss], [distill] and [ema]: optimizer_options.cpp.
#include "tessera/recipe/option_rows.h"

namespace tessera::recipe {
namespace {

void add_training(std::vector<Option>& table) {
  using data::MixMode;
  const std::vector<Option> rows = {
      integer("train.batch", "Images in one optimizer step over all ranks; 0: not given", {0, 1e9},
              TESSERA_FIELD(train.batch)),
      integer("train.batch_per_rank", "Images in one micro-batch of one rank; 0: not given", {0, 1e9},
              TESSERA_FIELD(train.batch_per_rank)),
      integer("train.accumulation",
              "Micro-batches in one step; 0: not given. Two of batch, batch_per_rank and this fix the third",
              {0, 1e6}, TESSERA_FIELD(train.accumulation)),
      number("train.epochs", "Passes over the training data, an alternative to train.steps; 0: not given",
             {0, 1e9}, TESSERA_FIELD(train.epochs)),
      integer("train.steps", "Optimizer steps, an alternative to train.epochs; 0: not given", kCount,
              TESSERA_FIELD(train.steps)),
      integer("train.seed", "Seed of initial weights, data order, augmentation and dropout",
              {0, 9223372036854775807.0}, TESSERA_FIELD(train.seed)),
      number("train.eval_every_epochs", "Epochs between evaluations; 0: evaluate only at the end", {0, 1e9},
             TESSERA_FIELD(train.eval_every_epochs)),
      integer("train.eval_every_steps",
              "Steps between evaluations; overrides eval_every_epochs; 0: not given", kCount,
              TESSERA_FIELD(train.eval_every_steps)),
      integer("train.eval_batch", "Images in an evaluation batch of one rank; 0: the training batch",
              {0, 1e9}, TESSERA_FIELD(train.eval_batch)),
      flag("train.eval_first", "Also evaluate before the first step", TESSERA_FIELD(train.eval_first)),
      integer("train.log_every", "Steps between log lines", {1, 1e9}, TESSERA_FIELD(train.log_every)),
      number("train.clip", "Largest allowed norm of the whole gradient; larger ones are scaled down; 0: off",
             {0, 1e9}, TESSERA_FIELD(train.clip)),
      number("train.label_smoothing",
             "Label smoothing: share of the label that is spread over all classes; 0: off", kRate,
             TESSERA_FIELD(train.label_smoothing)),
      number("train.mixup", "alpha of Mixup; 0: off", {0, 1e6}, TESSERA_FIELD(train.mix.mixup)),
      number("train.cutmix", "alpha of CutMix; 0: off", {0, 1e6}, TESSERA_FIELD(train.mix.cutmix)),
      floats("train.cutmix_minmax",
             "least and most share of a side of CutMix's box, instead of an alpha; empty: none", {0, 1},
             TESSERA_FIELD(train.mix.cutmix_minmax)),
      number("train.mix_prob", "probability of mixing at all", {0, 1}, TESSERA_FIELD(train.mix.probability)),
      number("train.mix_switch_prob", "probability of CutMix where both are on", {0, 1},
             TESSERA_FIELD(train.mix.switch_probability)),
      choice<MixMode>("train.mix_mode", "what shares a draw: mix_group images, two partners, or none",
                      {{"batch", MixMode::kBatch}, {"pair", MixMode::kPair}, {"elem", MixMode::kElement}},
                      TESSERA_FIELD(train.mix.mode)),
      integer("train.mix_group", "batch: consecutive images of the global batch that share a draw", {1, 1e9},
              TESSERA_FIELD(train.mix.group)),
      integer("train.mix_off_epoch", "from this epoch on nothing is mixed; 0: never", {0, 1e9},
              TESSERA_FIELD(train.mix.off_epoch)),
      flag("train.mix_at_least_half", "Mixup keeps the larger share of an image itself, as big_vision",
           TESSERA_FIELD(train.mix.at_least_half)),
      path("train.init_from",
           "weights to begin with: a run, a checkpoint, or others' file or folder (docs/finetune.md); empty: "
           "random",
           TESSERA_FIELD(train.init_from)),
      text("train.init_positions", "how positions become those of another image size",
           TESSERA_FIELD(train.init_positions), {"bicubic", "linear"}),
      text("train.init_head", "auto: kept where there are as many classes, else zero; fresh: random",
           TESSERA_FIELD(train.init_head), {"auto", "keep", "zero", "fresh"}),
      number("train.init_head_bias", "of a head that begins at zero", {-1000, 1000},
             TESSERA_FIELD(train.init_head_bias)),
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

/// It was a flag once: true meant passes.
Option cuda_graphs() {
  Option option = choice<CudaGraphs>("run.cuda_graphs",
                                     "Part of a training step that a GPU replays as CUDA graphs; step: "
                                     "passes and the update; auto: step on one "
                                     "rank where memory allows it",
                                     {{"auto", CudaGraphs::kAuto},
                                      {"off", CudaGraphs::kOff},
                                      {"pass", CudaGraphs::kPass},
                                      {"step", CudaGraphs::kStep}},
                                     TESSERA_FIELD(run.cuda_graphs));
  option.older = {{"false", "off"}, {"true", "pass"}};
  return option;
}

void add_machine(std::vector<Option>& table) {
  using plan::Level, plan::Offload;
  const std::vector<Option> rows = {
      choice<Level>("shard.level", "what is split over the ranks",
                    {{"replicate", Level::kReplicate},
                     {"zero1", Level::kZero1},
                     {"zero2", Level::kZero2},
                     {"zero3", Level::kZero3}},
                    TESSERA_FIELD(shard.level)),
      flag("shard.recompute", "compute blocks again in backward instead of keeping them",
           TESSERA_FIELD(shard.recompute)),
      text("shard.units", "units with a level of their own: \"blocks.0-19=replicate, head=zero2\"",
           TESSERA_FIELD(shard.units)),
      integer("shard.prefetch", "units gathered ahead; 0: nothing overlaps", {0, 64},
              TESSERA_FIELD(shard.prefetch)),
      choice<Offload>("shard.offload",
                      "what of a rank's share lies in the host's memory, not where units compute",
                      {{"none", Offload::kNone}, {"optimizer", Offload::kOptimizer}, {"all", Offload::kAll}},
                      TESSERA_FIELD(shard.offload)),
      choice<Dtype>("precision.compute",
                    "auto: bf16 on a GPU, and on CPUs with AMX or a fast AVX512_BF16 (not Intel's)",
                    {{"auto", Dtype::kAuto},
                     {"fp32", Dtype::kFloat32},
                     {"bf16", Dtype::kBFloat16},
                     {"fp16", Dtype::kFloat16}},
                    TESSERA_FIELD(precision.compute)),
      choice<Linear>(
          "precision.linear",
          "Dtype of the inputs of the blocks' linear layers; auto: as precision.compute; fp8: e4m3",
          {{"auto", Linear::kAuto}, {"fp8", Linear::kFp8}}, TESSERA_FIELD(precision.linear)),
      choice<Dtype>("precision.reduce", "Widest dtype in which gradients are sent between ranks",
                    {{"fp32", Dtype::kFloat32}, {"bf16", Dtype::kBFloat16}}, TESSERA_FIELD(precision.reduce)),
      choice<Dtype>(
          "precision.final_evaluation",
          "Dtype of the evaluation after the last step and of tessera eval; auto: as precision.compute",
          {{"auto", Dtype::kAuto}, {"fp32", Dtype::kFloat32}}, TESSERA_FIELD(precision.final_evaluation)),
      number("precision.loss_scale",
             "Initial loss scale of fp16; halved by an overflow, doubled after 2,000 steps without one",
             {1, 1e9}, TESSERA_FIELD(precision.loss_scale)),
      integer(
          "guard.skip_steps",
          "steps in a row that may be skipped because loss or gradient is not finite; one more stops the run",
          {0, 1e6}, TESSERA_FIELD(guard.skip_steps)),
      number("guard.spike_factor", "steps with a loss above this times the median loss are skipped; 0: off",
             {0, 1e6}, TESSERA_FIELD(guard.spike_factor)),
      integer("guard.spike_window",
              "Window of the running median, in steps; no spike is reported before it is full", {1, 1e5},
              TESSERA_FIELD(guard.spike_window)),
      integer("guard.spike_steps", "spikes in a row that may be skipped; one more stops the run", {0, 1e6},
              TESSERA_FIELD(guard.spike_steps)),
      integer("guard.spike_skip", "steps after a spike that are skipped as well; 0: only the spike", {0, 1e6},
              TESSERA_FIELD(guard.spike_skip)),
      path("checkpoint.dir",
           "Folder of the checkpoints; each host may have its own; empty: checkpoints/ in the run folder",
           TESSERA_FIELD(checkpoint.dir)),
      number("checkpoint.every_epochs", "Epochs between checkpoints; 0: save only at the end and on a signal",
             {0, 1e9}, TESSERA_FIELD(checkpoint.every_epochs)),
      integer("checkpoint.every_steps", "Steps between checkpoints; overrides every_epochs; 0: not given",
              kCount, TESSERA_FIELD(checkpoint.every_steps)),
      integer("checkpoint.keep", "newest checkpoints to keep, besides the best ones; 0 keeps all", {0, 1e6},
              TESSERA_FIELD(checkpoint.keep)),
      integer("checkpoint.keep_every", "Keep every checkpoint whose step is a multiple of this; 0: off",
              kCount, TESSERA_FIELD(checkpoint.keep_every)),
      text("checkpoint.best", "what makes a checkpoint the best; _ema: of the moving average",
           TESSERA_FIELD(checkpoint.best), {"top1", "loss", "top1_ema", "loss_ema"}),
      integer("checkpoint.keep_best", "how many of these to keep, besides the newest", {1, 1e6},
              TESSERA_FIELD(checkpoint.keep_best)),
      text("checkpoint.on_damage", "a damaged newest or best checkpoint: take the newest whole one, or stop",
           TESSERA_FIELD(checkpoint.on_damage), {"fall_back", "fail"}),
      integer("checkpoint.retries", "times that a failed save is tried again, after 1, 2, 4, ... seconds",
              {0, 10}, TESSERA_FIELD(checkpoint.retries)),
      text("checkpoint.on_failed_save",
           "a save that failed each time: end the run, or warn and go on (the last save always ends it)",
           TESSERA_FIELD(checkpoint.on_failed_save), {"fail", "go_on"}),
      flag("checkpoint.async", "training waits for a copy only, 12 bytes a parameter of the rank's share",
           TESSERA_FIELD(checkpoint.async)),
      path("run.dir", "Run folder; empty: runs/<name>", TESSERA_FIELD(run.dir)),
      integer("run.threads",
              "Compute threads of each rank; 0: OMP_NUM_THREADS where set, else cores / local ranks",
              {0, 4096}, TESSERA_FIELD(run.threads)),
      number("run.timeout",
             "Seconds that a collective or one operation on a file may take before the run fails",
             {0, 1e6, true}, TESSERA_FIELD(run.timeout)),
      number("run.time_limit", "seconds after which the run saves and stops; 0: none but a Slurm job's",
             {0, 1e9}, TESSERA_FIELD(run.time_limit)),
      number("run.time_margin", "seconds before that limit at which it does, for the save", {0, 1e6},
             TESSERA_FIELD(run.time_margin)),
      text("run.trace", "steps, such as 10:12, whose trace goes into trace.json of the run's folder",
           TESSERA_FIELD(run.trace)),
      integer("run.statistics_every",
              "steps between statistics of activations and gradients, in statistics.jsonl; 0: none", {0, 1e9},
              TESSERA_FIELD(run.statistics_every)),
      text("run.wandb",
           "project of Weights & Biases that gets the curves, through its Python package; empty: none",
           TESSERA_FIELD(run.wandb)),
      choice<DeviceKind>(
          "run.device",
          "Device of the ranks; auto: one GPU for each rank where the CUDA plug-in finds GPUs, else the CPU",
          {{"auto", DeviceKind::kAuto}, {"cpu", DeviceKind::kCpu}, {"cuda", DeviceKind::kCuda}},
          TESSERA_FIELD(run.device)),
      flag("run.share_gpu",
           "Allow more ranks than GPUs on a host; collectives then use host memory (slow; for tests)",
           TESSERA_FIELD(run.share_gpu)),
      cuda_graphs(),
      choice<KeepActivations>(
          "run.keep_activations",
          "keep norm and GELU outputs for backward instead of recomputing them (GPU only); auto: if they fit",
          {{"auto", KeepActivations::kAuto},
           {"always", KeepActivations::kAlways},
           {"never", KeepActivations::kNever}},
          TESSERA_FIELD(run.keep_activations)),
      flag("run.shared_memory", "Ranks of one host exchange data through shared memory; false: through TCP",
           TESSERA_FIELD(run.shared_memory)),
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

std::vector<Option> make_options() {
  std::vector<Option> table = {text(
      "name", "Name of the run; used for the run folder", [](auto& recipe) -> auto& { return recipe.name; })};
  add_model_options(table);
  add_source_options(table);
  add_data_options(table);
  add_training(table);
  add_optimizer_options(table);
  add_machine(table);
  return table;
}

}  // namespace

const std::vector<Option>& options() {
  static const std::vector<Option> table = make_options();
  return table;
}

}  // namespace tessera::recipe
