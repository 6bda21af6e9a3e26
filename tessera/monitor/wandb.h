// SPDX-License-Identifier: Apache-2.0
// A run's curves for Weights & Biases: its Python package, which has no library of its own for other
// languages, in a process beside the training. Belongs to one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "tessera/base/log.h"
#include "tessera/formats/event_file.h"
#include "tessera/monitor/side_process.h"

namespace tessera::monitor {

struct WandbOptions {
  std::string project;
  std::filesystem::path
      run_dir;                 // W&B's files go into wandb/ of it, what the client says into logs/wandb.log
  std::string recipe_toml;     // becomes the run's config
  bool resume = false;         // go on under the id that the run folder holds
  double start_seconds = 120;  // that the client may take to begin, and to end
  double end_seconds = 30;
};

class Wandb {
 public:
  /// Starts `python3`, or what the environment variable TESSERA_PYTHON names, and waits until wandb.init is
  /// done there. The run is offline unless WANDB_MODE says otherwise, named like its folder, and has an id
  /// that a resumed run keeps. Errors: UserError where Python or its package is missing, or wandb.init fails;
  /// it says what Python said.
  Wandb(WandbOptions options, Log& log);
  Wandb(const Wandb&) = delete;
  Wandb& operator=(const Wandb&) = delete;

  /// wandb.log(points, step=step). Never waits and never fails: where the client is slow, points wait in
  /// memory; where they become too many or the client is gone, some or all are dropped with one warning.
  void send(int64_t step, const formats::EventScalars& points);

  /// The run is done: hands over what waits, and waits for the client to end, at most end_seconds. A Wandb
  /// that goes without this waits for nothing, and its run counts as failed.
  void finish();

  /// Of the client.
  pid_t pid() const { return process_.pid(); }

 private:
  void warn_of_lost_rows();
  void warn_once(const std::string& text);

  WandbOptions options_;
  Log& log_;
  std::string python_;
  std::filesystem::path output_;
  size_t said_before_ = 0;  // bytes of output_ that are an earlier start's
  SideProcess process_;
  bool warned_ = false, finished_ = false;
};

}  // namespace tessera::monitor
