// SPDX-License-Identifier: Apache-2.0
// Saves a run's state, in the training thread or beside it.
#pragma once

#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/loop/folder_fault.h"
#include "tessera/loop/run_state.h"
#include "tessera/loop/world.h"

namespace tessera::loop {

/// What saves took on this rank, in seconds.
struct SaveTimes {
  int64_t saves = 0;
  int64_t copied_bytes = 0;  // by the newest one beside the training
  double copied = 0;         // copying, of saves beside the training
  double stalled = 0;  // training stood still: copies, waits for the save before, and saves not beside it
  double written = 0;  // from the start of each save to its end
};

/// Belongs to the training thread. With checkpoint.async a save copies what this rank writes and returns; a
/// thread writes the copy, one save at a time, and exchanges texts with the other ranks' threads over a
/// separate World. A save that fails is tried again (checkpoint.retries); one that failed each time is thrown
/// or, with checkpoint.on_failed_save = "go_on", warned about. All ranks see the same failure and do the
/// same.
class Saver {
 public:
  /// Collective. All references outlive it. `folder`: the run's checkpoints. A save writes and removes
  /// nothing, is not tried again and throws FolderLost once `fault` of any rank gives a text.
  /// (More than 5 parameters: references that the saver holds.)
  Saver(RunState& state, Backend& backend, World& world, std::filesystem::path folder, Log& log,
        FolderFault fault = {});
  /// After an error: gives a save under way a few seconds to end. What it leaves unfinished is no checkpoint.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// Collective. Throws what this save threw, or the one before it.
  void save(bool best);
  /// Waits for the save under way; throws what the last save threw, also where failed saves are only warned
  /// about: the run ends here. Returns the newest checkpoint, empty without any.
  std::filesystem::path finish();
  const SaveTimes& times() const { return times_; }

 private:
  void wait_for_writer();
  /// The checkpoint that `save` makes, at the latest after the last retry. `world`: of the calling threads.
  std::filesystem::path save_with_retries(World& world, const std::function<std::filesystem::path()>& save);
  /// To be called in the handler of the error of a save that failed each time: throws it again where the run
  /// is to end.
  void failed(const UserError& error);

  RunState& state_;
  Backend& backend_;
  World& world_;
  std::filesystem::path folder_, newest_;
  std::unique_ptr<World> writers_;  // of the writing threads; null when saves are not beside the training
  Log& log_;
  FolderFault fault_;
  SaveTimes times_;
  std::optional<double> best_score_;  // of the last save, if it is among the best
  std::optional<UserError> failure_;  // of the last save, where the run went on
  struct Written {
    std::filesystem::path checkpoint;
    double seconds = 0;
  };
  std::future<Written> writer_;
};

}  // namespace tessera::loop
