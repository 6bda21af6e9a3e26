// SPDX-License-Identifier: Apache-2.0
// What a run says while it runs: console bar or plain lines, metrics.csv, metrics.jsonl, TensorBoard events,
// Weights & Biases.
// Rank 0 only; belongs to the training thread. No LibTorch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "tessera/base/log.h"
#include "tessera/monitor/report.h"
#include "tessera/monitor/tensor_statistics.h"

namespace tessera::monitor {

struct MonitorOptions {
  std::filesystem::path run_dir;
  int64_t total_steps = 0;
  int64_t log_every = 10;  // steps between lines when not on a terminal, and between rows of the files
  bool resume = false;     // append to the files, after dropping rows beyond `resume_step`
  int64_t resume_step = 0;
  double peak_tflops = 0;  // of the machine, measured; 0: share is not shown
  // A project of Weights & Biases (wandb.h), and the recipe that it shows beside the curves; "": none.
  std::string wandb = "", recipe_toml = "";
  double wandb_seconds = 120;  // that its client may take to begin, at most 120: other ranks wait meanwhile
};

class Monitor {
 public:
  /// Errors: UserError where the files' folders cannot be made, or W&B's client does not begin.
  Monitor(MonitorOptions options, Log& log);
  ~Monitor();
  /// Every step. Draws the bar (at most 10 times a second) or prints a line every log_every steps. Share of
  /// peak and time left follow from the options and the steps so far, whatever `metrics` says of them.
  void step(StepMetrics metrics);
  void eval(const EvalMetrics& metrics);
  /// A row of statistics.jsonl and points of the curves; of a resumed run's file the rows up to its step
  /// stay.
  void statistics(int64_t step, const std::vector<TensorStatistics>& statistics);
  /// Replaces the bar's label while evaluating or saving ("evaluating 3/79").
  void status(const std::string& text);
  /// The run is done: removes the bar, and waits until W&B's client has written the end. For W&B a run whose
  /// Monitor goes without this has failed.
  void finish();
  const std::vector<StepMetrics>& steps() const;
  const std::vector<EvalMetrics>& evals() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::monitor
