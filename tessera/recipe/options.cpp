// SPDX-License-Identifier: Apache-2.0
// The table of every option: key, field, range or choices, help. It alone decides which TOML keys there are,
// what --set takes, what --help says and what a saved recipe holds. Those of [model]: model_options.cpp; of
// [data]: data_options.cpp; of [optimizer], [schedule], [loss], [distill] and [ema]: optimizer_options.cpp.
#include "tessera/recipe/option_rows.h"

namespace tessera::recipe {
namespace {

// (Longer than 60 lines: a table.)
void add_training(std::vector<Option>& table) {
  using data::MixMode;
  const std::vector<Option> rows = {
      integer(
          "train.batch",
          "Global batch: images per optimizer step over all ranks; 0 = batch_per_rank x ranks x accumulation",
          {0, 1e9}, TESSERA_FIELD(train.batch)),
      integer("train.batch_per_rank",
              "Images per rank and micro-batch (timm: --batch-size); 0 = from batch; with batch: sets "
              "accumulation",
              {0, 1e9}, TESSERA_FIELD(train.batch_per_rank)),
      integer("train.accumulation",
              "Micro-batches per step (timm: --grad-accum-steps); 0 = from batch and batch_per_rank, else 1",
              {0, 1e6}, TESSERA_FIELD(train.accumulation)),
      number("train.epochs", "Length of training in epochs; set either this or train.steps (0 = not set)",
             {0, 1e9}, TESSERA_FIELD(train.epochs)),
      integer("train.steps",
              "Length of training in optimizer steps; set either this or train.epochs (0 = not set)", kCount,
              TESSERA_FIELD(train.steps)),
      integer("train.seed", "Random seed of initial weights, data order, augmentation and dropout",
              {0, 9223372036854775807.0}, TESSERA_FIELD(train.seed)),
      number("train.eval_every_epochs",
             "Epochs between evaluations, unless eval_every_steps is set; 0 = evaluate only at the end",
             {0, 1e9}, TESSERA_FIELD(train.eval_every_epochs)),
      integer("train.eval_every_steps", "Optimizer steps between evaluations; 0 = use eval_every_epochs",
              kCount, TESSERA_FIELD(train.eval_every_steps)),
      integer("train.eval_batch",
              "Images per rank in an evaluation batch; 0 = as many as in a training micro-batch", {0, 1e9},
              TESSERA_FIELD(train.eval_batch)),
      flag("train.eval_first", "Also evaluate before the first training step",
           TESSERA_FIELD(train.eval_first)),
      integer("train.log_every", "Optimizer steps between log lines and between rows of metrics.csv",
              {1, 1e9}, TESSERA_FIELD(train.log_every)),
      number("train.clip",
             "Largest global gradient norm; larger gradients are scaled down (timm: --clip-grad); 0 = off",
             {0, 1e9}, TESSERA_FIELD(train.clip)),
      number("train.label_smoothing",
             "Label probability spread evenly over all classes (timm: --smoothing); 0 = off", kRate,
             TESSERA_FIELD(train.label_smoothing)),
      number("train.mixup",
             "Mixup: alpha of the Beta distribution of the mixing weight (timm: --mixup); 0 = off", {0, 1e6},
             TESSERA_FIELD(train.mix.mixup)),
      number("train.cutmix",
             "CutMix: alpha of the Beta distribution of the box's area (timm: --cutmix); 0 = off", {0, 1e6},
             TESSERA_FIELD(train.mix.cutmix)),
      floats("train.cutmix_minmax",
             "CutMix: min and max box side as image fraction (timm: --cutmix-minmax); [] = use cutmix",
             {0, 1}, TESSERA_FIELD(train.mix.cutmix_minmax)),
      number("train.mix_prob", "Probability that images are mixed by Mixup or CutMix (timm: --mixup-prob)",
             {0, 1}, TESSERA_FIELD(train.mix.probability)),
      number("train.mix_switch_prob",
             "Probability of CutMix instead of Mixup if both are on (timm: --mixup-switch-prob)", {0, 1},
             TESSERA_FIELD(train.mix.switch_probability)),
      choice<MixMode>(
          "train.mix_mode",
          "Images that share random Mixup/CutMix parameters: mix_group images (batch), 2 (pair) or 1 (elem)",
          {{"batch", MixMode::kBatch}, {"pair", MixMode::kPair}, {"elem", MixMode::kElement}},
          TESSERA_FIELD(train.mix.mode)),
      integer("train.mix_group",
              "Only for mix_mode = \"batch\": consecutive images that share random Mixup/CutMix parameters",
              {1, 1e9}, TESSERA_FIELD(train.mix.group)),
      integer("train.mix_off_epoch",
              "Epoch from which Mixup and CutMix are off (timm: --mixup-off-epoch); 0 = never off", {0, 1e9},
              TESSERA_FIELD(train.mix.off_epoch)),
      flag("train.mix_at_least_half",
           "Mixup weight of an image is max(lambda, 1 - lambda), as in big_vision; false = lambda (timm)",
           TESSERA_FIELD(train.mix.at_least_half)),
      path("train.init_from",
           "Initial weights: run or checkpoint folder, or weights file (docs/finetune.md); \"\" = random",
           TESSERA_FIELD(train.init_from)),
      text("train.init_positions",
           "Interpolation of init_from's position embeddings if the image size differs",
           TESSERA_FIELD(train.init_positions), {"bicubic", "linear"}),
      text("train.init_head",
           "Classifier with init_from: auto = keep for an equal number of classes, else zero; fresh = random",
           TESSERA_FIELD(train.init_head), {"auto", "keep", "zero", "fresh"}),
      number("train.init_head_bias",
             "Initial bias of a classifier zeroed by init_head (train.init_from); model.head_bias is not "
             "used then",
             {-1000, 1000}, TESSERA_FIELD(train.init_head_bias)),
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

/// It was a flag once: true meant passes.
Option cuda_graphs() {
  Option option = choice<CudaGraphs>(
      "run.cuda_graphs",
      "CUDA graphs for forward + backward (pass), + update (step); auto = step on 1 rank if memory allows",
      {{"auto", CudaGraphs::kAuto},
       {"off", CudaGraphs::kOff},
       {"pass", CudaGraphs::kPass},
       {"step", CudaGraphs::kStep}},
      TESSERA_FIELD(run.cuda_graphs));
  option.older = {{"false", "off"}, {"true", "pass"}};
  return option;
}

// (Longer than 60 lines: a table.)
void add_machine(std::vector<Option>& table) {
  using plan::Level, plan::Offload, plan::Schedule;
  const std::vector<Option> rows = {
      choice<Level>(
          "shard.level",
          "Split over ranks: optimizer state (zero1), + gradients (zero2), + parameters (zero3, like FSDP)",
          {{"replicate", Level::kReplicate},
           {"zero1", Level::kZero1},
           {"zero2", Level::kZero2},
           {"zero3", Level::kZero3}},
          TESSERA_FIELD(shard.level)),
      integer("shard.ranks",
              "Adjacent ranks that split one copy of the state, such as one host's (HSDP); 0 = all ranks",
              {0, 1 << 24}, TESSERA_FIELD(shard.ranks)),
      flag("shard.recompute",
           "Recompute the activations of blocks in backward to save memory (activation checkpointing)",
           TESSERA_FIELD(shard.recompute)),
      text(
          "shard.units",
          "Rules for single units, such as \"blocks.0-9=replicate, blocks.10-11=tensor2+zero3\"; \"\" = none",
          TESSERA_FIELD(shard.units)),
      integer("shard.prefetch",
              "Number of units (blocks) gathered ahead of use, each of which takes memory; 0 = no overlap",
              {0, 64}, TESSERA_FIELD(shard.prefetch)),
      choice<Offload>(
          "shard.offload",
          "In host memory: fp32 weights, gradients, optimizer state (optimizer), compute shards (all)",
          {{"none", Offload::kNone}, {"optimizer", Offload::kOptimizer}, {"all", Offload::kAll}},
          TESSERA_FIELD(shard.offload)),
      integer("parallel.pipeline",
              "Stages that the model is cut into (Megatron: --pipeline-model-parallel-size); 1 = off",
              {1, 1 << 24}, TESSERA_FIELD(parallel.pipeline.stages)),
      choice<Schedule>(
          "parallel.schedule", "Order in which a stage runs the passes of micro-batches",
          {{"gpipe", Schedule::kGpipe}, {"1f1b", Schedule::k1F1B}, {"interleaved", Schedule::kInterleaved}},
          TESSERA_FIELD(parallel.pipeline.schedule)),
      integer("parallel.virtual_stages",
              "Parts of the model that a stage holds, with parallel.schedule = \"interleaved\"; else 1",
              {1, 1 << 16}, TESSERA_FIELD(parallel.pipeline.virtual_stages)),
      integer("parallel.micro_batches",
              "Micro-batches of a step in a pipeline; 0 = train.accumulation, or chosen where that is 0",
              {0, 1 << 24}, TESSERA_FIELD(parallel.pipeline.micro_batches)),
      integer("parallel.ahead",
              "Forward passes that 1F1B runs early to hide the time of messages; 1 keeps more activations",
              {0, 1}, TESSERA_FIELD(parallel.pipeline.ahead)),
      counts("parallel.stages",
             "Blocks of each stage, such as [8, 8, 9, 7] (stem and head besides); [] = cut by cost",
             {0, 1 << 24}, TESSERA_FIELD(parallel.pipeline.blocks)),
      integer("parallel.tensor",
              "Ranks that compute each block together (Megatron: --tensor-model-parallel-size); 1 = off",
              {1, 1 << 24}, TESSERA_FIELD(parallel.tensor)),
      flag("parallel.tensor_adjacent",
           "Form tensor groups of adjacent ranks, such as one host's; false = of ranks as far apart as "
           "possible",
           TESSERA_FIELD(parallel.tensor_adjacent)),
      flag("parallel.keep_gathered",
           "Keep gathered inputs of tensor-parallel layers for backward; false = gather again, less memory",
           TESSERA_FIELD(parallel.keep_gathered)),
      integer("parallel.pieces",
              "Pieces in which exchanges go on beside products; 0 = 1 over shared memory, else 4", {0, 64},
              TESSERA_FIELD(parallel.pieces)),
      path("parallel.plan",
           "Plan file (plan.json) used instead of the keys shard.* and parallel.*; \"\" = none",
           TESSERA_FIELD(parallel.plan)),
      choice<Dtype>(
          "precision.compute",
          "Compute dtype (timm: --amp-dtype); auto = bf16 on GPUs and on CPUs with fast bf16, else fp32",
          {{"auto", Dtype::kAuto},
           {"fp32", Dtype::kFloat32},
           {"bf16", Dtype::kBFloat16},
           {"fp16", Dtype::kFloat16}},
          TESSERA_FIELD(precision.compute)),
      choice<Linear>(
          "precision.linear",
          "Dtype of inputs and weights of the blocks' linear layers: auto = precision.compute, fp8 = e4m3",
          {{"auto", Linear::kAuto}, {"fp8", Linear::kFp8}}, TESSERA_FIELD(precision.linear)),
      choice<Dtype>("precision.reduce",
                    "Widest dtype in which gradients are sent between ranks; they are always summed in fp32",
                    {{"fp32", Dtype::kFloat32}, {"bf16", Dtype::kBFloat16}}, TESSERA_FIELD(precision.reduce)),
      choice<Dtype>("precision.final_evaluation",
                    "Dtype of the evaluation after training and of tessera eval; auto = as precision.compute",
                    {{"auto", Dtype::kAuto}, {"fp32", Dtype::kFloat32}},
                    TESSERA_FIELD(precision.final_evaluation)),
      number(
          "precision.loss_scale",
          "Only for fp16: initial loss scale; halved on overflow, doubled after 2,000 steps without overflow",
          {1, 1e9}, TESSERA_FIELD(precision.loss_scale)),
      integer(
          "guard.skip_steps",
          "Max number of consecutive steps skipped for a non-finite loss or gradient before the run stops",
          {0, 1e6}, TESSERA_FIELD(guard.skip_steps)),
      number("guard.spike_factor",
             "Skip steps whose loss is above this times the median of recent losses; 0 = off", {0, 1e6},
             TESSERA_FIELD(guard.spike_factor)),
      integer("guard.spike_window",
              "Window of the median loss for spike_factor, in steps; no step is skipped before it is full",
              {1, 1e5}, TESSERA_FIELD(guard.spike_window)),
      integer("guard.spike_steps",
              "Max number of loss spikes skipped in a row; the next stops the run. Unused while spike_factor "
              "is 0",
              {0, 1e6}, TESSERA_FIELD(guard.spike_steps)),
      integer("guard.spike_skip",
              "Further steps to skip after each loss spike (see spike_factor); 0 = skip only the spike",
              {0, 1e6}, TESSERA_FIELD(guard.spike_skip)),
      path("checkpoint.dir",
           "Folder for checkpoints, shared or local to each host; \"\" = checkpoints/ in the run folder",
           TESSERA_FIELD(checkpoint.dir)),
      number("checkpoint.every_epochs",
             "Epochs between checkpoints, unless every_steps is set; 0 = save only at the end and at a stop",
             {0, 1e9}, TESSERA_FIELD(checkpoint.every_epochs)),
      integer("checkpoint.every_steps", "Optimizer steps between checkpoints; 0 = use every_epochs", kCount,
              TESSERA_FIELD(checkpoint.every_steps)),
      integer(
          "checkpoint.keep",
          "Number of newest checkpoints to keep (timm: --checkpoint-hist), besides the best; 0 = keep all",
          {0, 1e6}, TESSERA_FIELD(checkpoint.keep)),
      integer("checkpoint.keep_every", "Always keep checkpoints whose step is a multiple of this; 0 = off",
              kCount, TESSERA_FIELD(checkpoint.keep_every)),
      text("checkpoint.best",
           "Validation metric that selects the best checkpoint; _ema = of the moving average (needs "
           "ema.decay)",
           TESSERA_FIELD(checkpoint.best), {"top1", "loss", "top1_ema", "loss_ema"}),
      integer("checkpoint.keep_best",
              "Number of best checkpoints (by checkpoint.best) to keep, besides the newest", {1, 1e6},
              TESSERA_FIELD(checkpoint.keep_best)),
      text("checkpoint.on_damage",
           "If the newest or best checkpoint is damaged: load another intact one (fall_back) or stop (fail)",
           TESSERA_FIELD(checkpoint.on_damage), {"fall_back", "fail"}),
      integer("checkpoint.retries",
              "Number of times that a failed save is retried, after 1, 2, 4, ... seconds", {0, 10},
              TESSERA_FIELD(checkpoint.retries)),
      text("checkpoint.on_failed_save",
           "After all retries of a save have failed: end the run (fail) or warn and continue (go_on)",
           TESSERA_FIELD(checkpoint.on_failed_save), {"fail", "go_on"}),
      flag("checkpoint.async",
           "Write checkpoints in background from a copy in host memory; 12 bytes per parameter with adamw",
           TESSERA_FIELD(checkpoint.async)),
      path("run.dir",
           "Folder for logs, metrics and checkpoints; \"\" = runs/<name>, or <name>-2, ... if that exists",
           TESSERA_FIELD(run.dir)),
      integer("run.threads",
              "Compute threads per rank; 0 = OMP_NUM_THREADS if set, else cores / ranks of the host",
              {0, 4096}, TESSERA_FIELD(run.threads)),
      number("run.timeout", "Seconds that a collective or a file operation may take before the run fails",
             {0, 1e6, true}, TESSERA_FIELD(run.timeout)),
      number(
          "run.time_limit",
          "Time limit of the run in seconds, before which it saves and stops; 0 = only that of a Slurm job",
          {0, 1e9}, TESSERA_FIELD(run.time_limit)),
      number("run.time_margin",
             "Seconds before the end of run.time_limit or of the Slurm job at which the run saves and stops",
             {0, 1e6}, TESSERA_FIELD(run.time_margin)),
      text("run.trace",
           "Steps to trace as FIRST:LAST, such as \"10:12\", into trace.json of the run folder; \"\" = off",
           TESSERA_FIELD(run.trace)),
      integer("run.statistics_every",
              "Steps between statistics of activations and gradients in statistics.jsonl; 0 = off", {0, 1e9},
              TESSERA_FIELD(run.statistics_every)),
      text("run.wandb", "Weights & Biases project to log to (needs its Python package); \"\" = off",
           TESSERA_FIELD(run.wandb)),
      choice<DeviceKind>(
          "run.device",
          "Device of the ranks; auto = one GPU per rank if the CUDA plug-in finds GPUs, else the CPU",
          {{"auto", DeviceKind::kAuto}, {"cpu", DeviceKind::kCpu}, {"cuda", DeviceKind::kCuda}},
          TESSERA_FIELD(run.device)),
      flag("run.share_gpu",
           "Allow more ranks than GPUs on a host; they exchange data through host memory (slow, for tests)",
           TESSERA_FIELD(run.share_gpu)),
      cuda_graphs(),
      choice<KeepActivations>("run.keep_activations",
                              "Keep norm and GELU outputs for backward instead of recomputing them (GPU "
                              "only); auto = if they fit",
                              {{"auto", KeepActivations::kAuto},
                               {"always", KeepActivations::kAlways},
                               {"never", KeepActivations::kNever}},
                              TESSERA_FIELD(run.keep_activations)),
      flag("run.shared_memory",
           "Exchange data between ranks of one host through shared memory; false = through TCP",
           TESSERA_FIELD(run.shared_memory)),
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

std::vector<Option> make_options() {
  std::vector<Option> table = {text(
      "name", "Name of the run; the run folder is runs/<name> unless run.dir is set",
      [](auto& recipe) -> auto& { return recipe.name; })};
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
