// SPDX-License-Identifier: Apache-2.0
// The door between the program, which starts without LibTorch, and libtessera.so, which it loads when a
// command computes. Plain values in, exit code out. No LibTorch in this header.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/tensor_source.h"
#include "tessera/launch/file_watchdog.h"
#include "tessera/launch/launch.h"
#include "tessera/monitor/checkup.h"
#include "tessera/recipe/recipe.h"

namespace tessera::planner {
struct Machine;  // assumed_profile.h
struct Profile;
}  // namespace tessera::planner

namespace tessera::train {

struct TrainJob {
  recipe::Recipe recipe;
  std::string resume;        // "", "latest", "best", a step or a path
  bool must_resume = false;  // a run was named: with nothing saved there, an error and no new start
  bool force = false;        // run although the predicted memory exceeds the machine's
  bool dry_run = false;      // say what would be done, do nothing
  double rate = 0;  // images a second of all ranks, for a dry run to say how long it takes; 0: unknown
  double expected_step = 0;               // seconds that a plan's step was predicted to take; 0: unknown
  int64_t pretend_steps = 1;              // where the ranks are pretended: steps to make
  int64_t trial_steps = 0;                // > 0: so many steps and nothing else, no evaluation, no checkpoint
  launch::FileWatchdog* files = nullptr;  // of this process; may be null
};

struct EvalJob {
  std::string checkpoint;         // a checkpoint's folder or a run's
  std::vector<std::string> sets;  // recipe keys to change: data.source, data.val, ...
  std::string split;              // "" : the recipe's validation split
  bool ema = false;               // the moving average of the weights
  bool json = false;
  std::string output;                     // also write the JSON here
  std::string output_dir;                 // tables, mistakes and a page go here (monitor/evaluation_report.h)
  int64_t mistakes = 48;                  // of the page
  std::string features;                   // safetensors file for what the classifier reads of every image
  std::vector<std::string> units;         // whose outputs go into that file as well
  int64_t neighbours = 0;                 // > 0: k of a k-NN classifier on the features of the training split
  bool probe = false;                     // a linear classifier on them
  launch::FileWatchdog* files = nullptr;  // of this process; may be null
};

struct PredictJob {
  std::string checkpoint;
  std::vector<std::string> images;
  std::vector<std::string> sets;  // recipe keys to change: model.heads, data.eval_crop, ...
  int64_t top = 5;
  bool ema = false;
  bool json = false, csv = false;         // at most one; with either, notes go to stderr
  launch::FileWatchdog* files = nullptr;  // of this process; may be null
};

struct BenchShardJob {
  recipe::Recipe recipe;  // the model, train.batch_per_rank, shard.*, precision.*
  int64_t rounds = 5;
  bool json = false;
  std::string output;  // also write the JSON here
};

struct BenchStepJob {
  std::string model;      // as the user named it
  recipe::Recipe recipe;  // the model, train.batch_per_rank, shard.*, precision.*, optimizer.*
  int64_t rounds = 5;     // steps measured
  bool json = false, quiet = false;
  std::string output;    // also write the JSON here
  std::string kernels;   // profile two more steps; their kernels' calls and times go here, as JSON
  std::string requests;  // take the steps that this file asks for instead of `rounds` (step_requests.h)
};

/// Exit code of a comparison that found a difference: no error (base/error.h has those).
inline constexpr int kExitDifferent = 1;

struct CompareLayoutsJob {
  std::string a, b;               // layouts: see train/layout.h
  std::string recipe;             // path
  std::vector<std::string> sets;  // recipe keys to change, for both
  int64_t steps = 1;
  bool float64 = false;
  std::optional<double> tolerance;
  bool all = false, json = false;
  launch::FileWatchdog* files = nullptr;  // of this process; may be null
};

/// A profile's of a CPU: half the time of its measurements.
inline constexpr double kPatience = 0.5;

struct PlanProfileJob {
  recipe::Recipe recipe;
  // Without a value: the default of the device (profile_scope.h).
  std::optional<int64_t> procs = {};  // ranks of this host, which are measured at the same time
  std::vector<int64_t> tensor = {};   // tensor-parallel degrees
  std::vector<int64_t> batches = {};  // images of a rank in a micro-batch
  /// Messages between its ranks are assumed, not measured. Null: none.
  std::shared_ptr<const planner::Machine> machine = nullptr;
  int64_t rounds = 5;
  std::optional<double> patience = {};  // profile::QuietCores, of CPUs; without a value: kPatience
  bool json = false;
  std::string output = {};  // the profile goes here
};

struct PlanProfileHostsJob {
  recipe::Recipe recipe;
  std::function<planner::Profile()> read_profile;  // called on rank 0, before the ranks meet
  int64_t rounds = 5;
  std::string output;  // the profile with the messages between hosts goes here
};

struct LogitsJob {
  arch::VitConfig model;
  checkpoint::TensorSource* weights = nullptr;  // "param/..." of the model, float32
  std::vector<float> images;                    // [count, channels, image, image]
  bool features = false;  // what the classifier reads, in place of logits; the weights may have no classifier
};

/// The functions of libtessera.so. Each throws tessera::Error.
struct Entry {
  int (*train)(const TrainJob& job, const launch::Ranks& ranks);
  int (*eval)(const EvalJob& job, const launch::Ranks& ranks);
  /// kExitPartial where some images, but not all, could not be read.
  int (*predict)(const PredictJob& job, const launch::Ranks& ranks);
  int (*bench_shard)(const BenchShardJob& job, const launch::Ranks& ranks);
  int (*bench_step)(const BenchStepJob& job, const launch::Ranks& ranks);
  /// kExitDifferent where the layouts differ. Ranks are threads of this process.
  int (*compare_layouts)(const CompareLayoutsJob& job);
  /// Ranks are threads of this process.
  int (*plan_profile)(const PlanProfileJob& job);
  /// Ranks are processes that a launcher started on several hosts. Collective.
  int (*plan_profile_hosts)(const PlanProfileHostsJob& job, const launch::Ranks& ranks);
  /// [count, classes], of features [count, width], in float32 on one device.
  std::vector<float> (*logits)(const LogitsJob& job);
  /// What a run of the recipe needs on this host, and what there is. Takes some seconds. Collective where a
  /// launcher started ranks: all but rank 0 measure the link alone.
  monitor::CheckupFacts (*measure_for_checkup)(const recipe::Recipe& recipe, const launch::Ranks& ranks);
  /// LibTorch's version, path and build options, for `tessera --version --verbose`.
  std::string (*torch_info)();
};

}  // namespace tessera::train

/// What the program looks up after loading the library.
extern "C" const tessera::train::Entry* tessera_entry();
