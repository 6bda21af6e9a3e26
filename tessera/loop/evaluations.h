// SPDX-License-Identifier: Apache-2.0
// The evaluations of a training: of the weights and of their moving average, and which of them is the best.
#pragma once

#include <functional>
#include <string>

#include "tessera/base/log.h"
#include "tessera/data/loader.h"
#include "tessera/loop/backend.h"
#include "tessera/loop/evaluation.h"
#include "tessera/loop/run_state.h"
#include "tessera/loop/world.h"
#include "tessera/monitor/monitor.h"

namespace tessera::loop {

/// One thread.
class Evaluations {
 public:
  struct Options {
    const data::Source& val;
    data::LoaderOptions loader;
    int64_t batch = 0;      // per rank
    int64_t last_step = 0;  // whose evaluation may be in float32 (precision.final_evaluation)
    std::function<bool()> stop_requested;
  };
  /// All references outlive it. `monitor`: null except on rank 0.
  Evaluations(RunState& state, Backend& backend, World& world, Options options, monitor::Monitor* monitor,
              Log& log);

  /// Evaluates now. `epoch`: of training so far. True: some rank was asked to stop meanwhile, and nothing
  /// came of it. Collective.
  bool evaluate(double epoch);
  /// Is the newest evaluation among the checkpoint.keep_best best so far? Then it takes its place there.
  bool take_if_best();

  const Evaluation& last() const { return last_; }  // newest complete one
  bool stalled() const { return stalled_; }        // threads of this rank hang in a file, and are left behind
  bool files_hang() const { return files_hang_; }  // some rank gave up waiting for images

 private:
  Evaluation evaluate_weights(bool average, const EvaluateOptions& options);

  RunState& state_;
  Backend& backend_;
  World& world_;
  const Options options_;
  monitor::Monitor* monitor_;
  Log& log_;
  Evaluation last_;
  bool stalled_ = false, files_hang_ = false;
};

}  // namespace tessera::loop
