// SPDX-License-Identifier: Apache-2.0
// Everything a run was asked to do, as one value: read from TOML, environment and --set, checked, printed,
// saved. One table in options.cpp (key, field, range, help) gives the TOML keys, --set, --help and the saved
// recipe. Pure functions, safe from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tessera/arch/model.h"
#include "tessera/data/loader.h"
#include "tessera/monitor/loss_scale.h"
#include "tessera/monitor/numerics_guard.h"
#include "tessera/plan/plan.h"
#include "tessera/recipe/device_kind.h"

namespace tessera::recipe {

enum class Dtype { kAuto, kFloat32, kBFloat16, kFloat16 };  // kAuto: bf16 where there are kernels, else fp32

struct DataRecipe {
  std::string source = "";                   // "folder:PATH", "zip:PATH", "wds:SHARDS"; see data/source.h
  std::string train = "train", val = "val";  // splits (data/split.h)
  std::vector<std::string> mix;              // further sources to train on
  std::vector<std::string> mix_train;        // their splits: none (as `train`), one for all, or one each
  std::vector<double> mix_weights;           // of `source` and each of `mix`; empty: by size
  data::OrderOptions order;                  // its `mix` follows from the sources
  std::string ram_cache = "none";            // or "part", "full"
  double ram_cache_gib = 0;                  // part: at most, a host
  int64_t workers = -1;                      // per rank; -1: what the machine has to spare, at least 1
  int64_t prefetch = 4;
  std::string on_error = "skip";  // or "fail"
  double error_limit = 0.01;
  std::string index_dir = "";                  // "": the user's cache; "beside", "none", or a folder
  std::string image_key = "", label_key = "";  // "": found out
  int64_t label_offset = 0;
  std::string classes = "";          // file of names
  bool allow_overlap = false;        // of data.train and data.val: else refused
  data::TransformOptions transform;  // image_size and channels follow the model
};

struct TrainRecipe {
  // Any two of the three fix the third (0: not given); see resolve_batch.
  int64_t batch = 0, batch_per_rank = 0, accumulation = 0;
  double epochs = 0;  // one of epochs and steps
  int64_t steps = 0;
  uint64_t seed = 0;
  double eval_every_epochs = 1;  // 0: only at the end
  int64_t eval_every_steps = 0;  // given: wins
  int64_t eval_batch = 0;        // per rank; 0: that of training
  bool eval_first = false;       // also before the first step
  int64_t log_every = 10;
  double clip = 1.0;  // global gradient norm; 0: off
  double label_smoothing = 0.0;
  data::ImageMixing mix;       // Mixup and CutMix
  std::string init_from = "";  // weights to begin with; "": random
  std::string init_positions = "bicubic", init_head = "auto";
  double init_head_bias = 0.0;
};

struct OptimizerRecipe {
  std::string name = "adamw";
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.05;
  double momentum = 0.9;          // sgd
  bool nesterov = false;          // sgd
  std::string lr_scale = "none";  // lr times batch / lr_batch ("linear"), or its root ("sqrt")
  int64_t lr_batch = 256;
  double trust = 1e-3;              // lars
  double layer_decay = 1;           // of the learning rate, from the last unit to the first
  std::string no_decay = "auto";    // or "none"
  std::vector<std::string> groups;  // "PATTERN: lr_scale=X, weight_decay=Y, freeze"; see parameter_groups.h
};

struct EmaRecipe {
  double decay = 0;     // 0: no average
  bool warmup = false;  // a shorter memory in the first steps
  int64_t every = 1;    // steps
};

struct LossRecipe {
  std::string name = "ce";  // ce, bce, sigmoid
  double threshold = -1;    // bce, sigmoid: targets above it are 1, others 0; below 0: as they are
};

/// Learning from another network's answers (Hinton et al., arXiv 1503.02531; DeiT, arXiv 2012.12877).
struct DistillRecipe {
  std::string teacher = "";   // as train.init_from; "": none
  std::string kind = "soft";  // or "hard": the teacher's first choice as a label
  double alpha = 0.5;         // the teacher's share of the loss
  double temperature = 1.0;   // soft: both networks' logits are divided by it
};

struct ScheduleRecipe {
  std::string name = "cosine";  // cosine, linear, step, rsqrt, constant
  double warmup_epochs = 0;     // one of the two
  int64_t warmup_steps = 0;
  double warmup_from = 0.0;    // learning rate at step 0
  bool warmup_inside = false;  // cosine and linear count from step 0, not from the end of the warmup
  double min_lr = 0.0;
  double step_epochs = 0;  // step: one of the two
  int64_t step_steps = 0;
  double factor = 0.1;         // step
  int64_t timescale = 10000;   // rsqrt: steps
  double cooldown_epochs = 0;  // one of the two
  int64_t cooldown_steps = 0;
};

struct ShardRecipe {
  plan::Level level = plan::Level::kZero3;
  int64_t ranks = 0;  // that split one copy of the state; 0: all (plan::set_shard_ranks)
  bool recompute = false;
  std::string units = "";  // rules for single units: plan::apply_unit_rules
  int64_t prefetch = 1;
  plan::Offload offload = plan::Offload::kNone;
};

/// Tensor parallelism: plan::set_tensor; stages of a pipeline: plan::set_pipeline.
struct ParallelRecipe {
  plan::PipelineSettings pipeline;
  int64_t tensor = 1;           // ranks that hold the layers of a block together
  bool tensor_adjacent = true;  // these are neighbours; false: as far apart as possible
  bool keep_gathered = true;    // gathered inputs of cut layers are kept for backward
  int64_t pieces = 0;           // of a cut layer's exchanges (parallel::TensorGroup::run); 0: by transport
  std::string plan = "";        // a plan file in the place of [shard] and [parallel]; "": none
};

/// How the linear layers of a network's blocks multiply: in the dtype of the computation, or factors in fp8.
enum class Linear { kAuto, kFp8 };

struct PrecisionRecipe {
  Dtype compute = Dtype::kAuto;
  Linear linear = Linear::kAuto;
  Dtype reduce = Dtype::kFloat32;
  double loss_scale = monitor::LossScale::kFirst;  // of fp16, at first
  Dtype final_evaluation = Dtype::kAuto;           // kAuto: as compute
};

struct CheckpointRecipe {
  std::string dir = "";                 // "": checkpoints/ of the run folder
  double every_epochs = 1;              // 0: only at the end (and on a signal)
  int64_t every_steps = 0;              // given: wins
  int64_t keep = 3;                     // newest; "best" is kept besides
  int64_t keep_every = 0;               // and steps that are multiples of this; 0: none
  std::string best = "top1";            // top1, loss, top1_ema, loss_ema
  int64_t keep_best = 1;                // by that
  std::string on_damage = "fall_back";  // or "fail": see checkpoint::choose()
  int64_t retries = 2;                  // of a save that failed
  std::string on_failed_save = "fail";  // or "go_on"
  bool async = false;                   // copied, then written beside the training
};

/// Whether blocks on a GPU keep the outputs of norms and GELUs for backward. kAuto: if memory allows.
enum class KeepActivations { kAuto, kAlways, kNever };

/// What of a training step a GPU replays as a CUDA graph: nothing, passes through the network, or these and
/// the update at the step's end.
enum class CudaGraphs { kAuto, kOff, kPass, kStep };

struct RunRecipe {
  std::string dir = "";          // run folder; "": runs/<name>
  int64_t threads = 0;           // compute threads a rank; 0: cores / local ranks, at least 1
  double timeout = 600;          // seconds a collective may wait
  double time_limit = 0;         // seconds from the start of the process; 0: none but a Slurm job's
  double time_margin = 120;      // seconds before the limit at which the run stops and saves
  std::string trace = "";        // steps to trace, "10:12"; "": none
  int64_t statistics_every = 0;  // steps between statistics of activations and gradients; 0: none
  std::string wandb = "";        // project of Weights & Biases; "": none
  bool shared_memory = true;
  DeviceKind device = DeviceKind::kAuto;
  bool share_gpu = false;  // more ranks on a host than GPUs
  CudaGraphs cuda_graphs = CudaGraphs::kAuto;
  KeepActivations keep_activations = KeepActivations::kAuto;  // outputs of norms and GELUs, for backward
};

/// Pieces of a cut layer's exchanges between ranks that do not share memory.
inline int64_t pieces_over_network(const ParallelRecipe& parallel) {
  constexpr int64_t kPieces = 4;  // parallel::TensorGroup
  return parallel.pieces > 0 ? parallel.pieces : kPieces;
}

/// How long a collective, or an operation on a file, may wait: run.timeout.
inline std::chrono::milliseconds timeout_of(const RunRecipe& run) {
  return std::chrono::milliseconds(static_cast<int64_t>(run.timeout * 1000));
}

struct Recipe {
  std::string name = "run";
  arch::ModelConfig model;
  DataRecipe data;
  TrainRecipe train;
  OptimizerRecipe optimizer;
  ScheduleRecipe schedule;
  EmaRecipe ema;
  LossRecipe loss;
  monitor::GuardOptions guard;
  DistillRecipe distill;
  ShardRecipe shard;
  ParallelRecipe parallel;
  PrecisionRecipe precision;
  CheckpointRecipe checkpoint;
  RunRecipe run;
};

/// Reads a TOML file.
///
/// Environment: `${NAME}` and `${NAME:-default}` (for NAME unset or empty) in any string; `$${` is `${`
/// itself. Paths (data.source after its kind, data.index_dir, data.classes, run.dir): relative ones in a
/// recipe are relative to the recipe file, those given by --set to the working directory; the Recipe holds
/// absolute ones. Model: `model.preset = "S/16"` (any name arch::model_config knows) sets all of [model],
/// single keys then win (an error where --set gives the preset and the file sizes of its own); without
/// model.family the preset's family counts, without both the model is a ViT. Where width is given and neither
/// mlp_width nor mlp_ratio, the MLP keeps the preset's (or B/16's) ratio. Grey models (channels = 1) get
/// data.mean 0.449 and data.std 0.226 unless given; SGD, Adam and LARS, whose weight decay is part of the
/// gradient, get optimizer.weight_decay 0, Lion beta2 0.99, Muon momentum 0.95 and nesterov. `sets`:
/// "room.key=value" pairs, applied in order after the file; value is TOML, a bare word is a string. Of
/// train.epochs and train.steps (schedule.warmup_*, model.mlp_*, ...) one may be given; by
/// --set, it replaces the file's other.
///
/// Errors: UserError with file, line and key; an unknown key names the nearest; out of range names the range.
Recipe read_recipe(const std::filesystem::path& path, const std::vector<std::string>& sets);
/// The same from text (`where` for messages, `base` for relative paths).
Recipe parse_recipe(const std::string& toml, const std::string& where, const std::filesystem::path& base,
                    const std::vector<std::string>& sets);

/// Full TOML of every key, with help as comments; parse_recipe gives the same value back.
std::string to_toml(const Recipe& recipe);
/// Keys whose values differ, for "resumed with another recipe" messages: "train.batch: 256 -> 512".
std::vector<std::string> difference(const Recipe& a, const Recipe& b);

/// (key, type, default, help) of every option, for `tessera options`.
struct OptionHelp {
  std::string key, type, default_value, help;  // default_value: empty if there is none
  std::vector<std::string> families;           // of models that have the key; empty: all
};
std::vector<OptionHelp> option_help();

/// The three batch numbers, all fixed. Any two of batch, batch_per_rank and accumulation fix the third; with
/// only batch, accumulation is 1. `per_rank` is the most images of a rank in a micro-batch: without
/// train.batch_per_rank any batch is cut (data::StepShares), and ranks and micro-batches may be unequal or
/// empty. Errors: UserError in one line when the three contradict each other.
struct BatchSizes {
  int64_t batch = 0, per_rank = 0, accumulation = 1;
};
BatchSizes resolve_batch(const TrainRecipe& train, int64_t world);

/// Steps of a training set of this size: an epoch is floor(samples / batch) steps (data.remainder = "keep":
/// rounded up; "carry": samples / batch, not always whole), epochs are rounded to whole steps, at least one.
/// A run shorter than its warmup ends within it. Errors: UserError when the set is smaller than one batch and
/// the remainder is dropped, and when min_lr is above the learning rate scaled to this batch.
struct StepCounts {
  double steps_per_epoch = 0;
  int64_t total = 0, warmup = 0, cooldown = 0;
  int64_t interval = 0;  // "step": between two drops
  double lr_factor = 1;  // of optimizer.lr, from optimizer.lr_scale and the batch
  int64_t begin = 0;  // the step at which epoch 0 would have begun, had the run had this batch from its start
};
StepCounts count_steps(const Recipe& recipe, int64_t train_samples, int64_t batch);

/// The counts of a run that goes on with a different batch: at step `step` it stands where a run with this
/// batch from its start stands at step `same_as`. What the recipe gives in epochs (the end, the warmup, drops
/// of the learning rate) is moved by the difference; what it gives in steps is not.
StepCounts counts_after_resume(const Recipe& recipe, StepCounts counts, int64_t step, int64_t same_as);

/// Learning rate of step s (0-based, the step about to be made), with w warmup steps of t in all, the last c
/// of them cooldown, and lr = optimizer.lr * lr_factor. After a resume with a different batch, s and w count
/// from counts.begin where the recipe gives epochs:
///   s < w     warmup_from + (lr - warmup_from) * s / w
///   cosine    min_lr + (lr - min_lr) * (1 + cos(pi * p)) / 2, p = (s - w) / (t - w - c), at most 1
///             (timm's CosineLRScheduler with warmup_prefix); with warmup_inside p = s / (t - c), so that
///             the rate falls short of lr after the warmup (without warmup_prefix, timm's default)
///   linear    lr + (min_lr - lr) * p
///   step      lr * factor^floor(s / interval), at least min_lr (timm's StepLRScheduler, warmup_prefix off)
///   rsqrt     lr / sqrt(1 + (s - w) / timescale), at least min_lr (big_vision, utils.py)
///   constant  lr
/// In the cooldown cosine and linear stay at min_lr, as timm's schedulers do; of the others what is above
/// min_lr is multiplied by (t - s) / c, as big_vision does (where min_lr is 0).
double learning_rate(const Recipe& recipe, const StepCounts& counts, int64_t step);

/// Numbers of 4 bytes that optimizer and moving average keep of each parameter. Adafactor's rows and columns
/// and what Muon keeps of vectors are not counted.
double kept_numbers(const Recipe& recipe);

}  // namespace tessera::recipe
