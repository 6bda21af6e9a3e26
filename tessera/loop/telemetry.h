// SPDX-License-Identifier: Apache-2.0
// What a run says of its steps: to the monitor on rank 0, to the log elsewhere, and as a trace.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "tessera/base/log.h"
#include "tessera/base/trace.h"
#include "tessera/loop/backend.h"
#include "tessera/loop/folder_fault.h"
#include "tessera/loop/run_state.h"
#include "tessera/loop/train_step.h"
#include "tessera/loop/world.h"
#include "tessera/monitor/monitor.h"
#include "tessera/recipe/recipe.h"

namespace tessera::loop {

/// How long a step took on this rank, in seconds.
struct StepTimes {
  double seconds = 0;                 // in all
  double data_wait = 0;               // of these, waiting for the data loader
  double comm_wait = 0;               // and for other ranks
  std::optional<double> bubble = {};  // of the latter, for other stages of a pipeline
};

/// One thread.
class Telemetry {
 public:
  /// All but `counts` outlive it. `monitor`: null except on rank 0.
  Telemetry(const RunState& state, const Backend& backend, const recipe::StepCounts& counts,
            monitor::Monitor* monitor, Log& log);
  /// After the step that state.step counts last.
  void step(const StepResult& step, double lr, const StepTimes& times);
  /// Of training so far, with fraction.
  double epoch() const;
  /// Over the steps of this process, if it made any.
  std::optional<double> images_per_second() const;
  /// Does this step get a line of metrics?
  bool is_line(int64_t step) const;

 private:
  void record(const StepResult& step, double seconds);

  const RunState& state_;
  const Backend& backend_;
  const recipe::StepCounts counts_;
  monitor::Monitor* monitor_;
  Log& log_;
  const double image_flops_;  // of forward and backward
  double own_seconds_ = 0;
  int64_t own_images_ = 0;
  StepTimes since_line_;
};

/// The trace of the steps that run.trace names. One thread.
class StepTrace {
 public:
  StepTrace(const RunState& state, int64_t last_step, World& world, std::filesystem::path file,
            FolderFault fault, Log& log);
  /// Runs the step that follows, traced if it is among them.
  StepResult run(const std::function<StepResult()>& step);
  /// Writes the file once the last step to trace is made, or the run stops before. All ranks agree on that.
  /// Collective.
  void write_when_done(bool stop);

 private:
  const RunState& state_;
  const int64_t last_step_;
  World& world_;
  const std::filesystem::path file_;
  const FolderFault fault_;  // of the folder of `file_`
  Log& log_;
  std::optional<StepRange> traced_;  // until it is written
  Trace trace_;
};

}  // namespace tessera::loop
