// SPDX-License-Identifier: Apache-2.0
// Where a run lives on disk.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "tessera/base/file.h"
#include "tessera/recipe/recipe.h"

namespace tessera::recipe {

struct RunFolder {
  std::filesystem::path path;         // absolute, exists, with a folder `logs`
  std::optional<FileLock> lock = {};  // keeps other processes out while the run goes on
  bool made = false;                  // it was not there before
  std::string note = {};              // a line to tell; "" for none
  /// The file of the lock that this process or its parent holds; none: the lock is held by another rank.
  std::optional<LockedFile> locked = {};
};

/// Takes the folder for this run: run.dir where given, else runs/<name>, or runs/<name>-2, -3, ... where
/// earlier runs, or runs that go on now, took the name. `resume` (the value of --resume, empty without): the
/// newest existing one that holds a complete checkpoint (the note names newer ones), else the newest one that
/// began, unless it is the path of a checkpoint outside run.dir, which starts a run of its own. Runs of
/// --pretend-world are never continued. The variable TESSERA_RUN_DIR wins over run.dir. Where this process's
/// parent set it by share_with_children, it holds the lock, and the folder is taken as it is; a UserError
/// where it was removed or replaced since. One process of a run calls it. Errors: UserError when run.dir
/// holds a run already and nobody asked to resume it (no run overwrites another), when it was pretended and
/// is to be resumed, when another process writes this run, when it or its checkpoints cannot be read, when it
/// cannot be created.
RunFolder claim_run_folder(const Recipe& recipe, const std::string& resume);

/// The folder that claim_run_folder() would take, for a dry run: nothing is made or kept locked. Errors:
/// UserError on what that function and checkpoint_folder() refuse, as far as it can be seen beforehand, and
/// on a place where no folder can be made.
std::filesystem::path check_run_folder(const Recipe& recipe, const std::string& resume);

/// What is wrong with a run folder whose lock this process or its parent holds, as the text of an error;
/// empty: nothing. A run whose folder was removed, or removed and taken by another run, must neither write
/// into the folder nor remove anything there.
std::string folder_fault(const std::filesystem::path& folder, const LockedFile& lock);
/// The same for a folder of checkpoints whose lock, of lock_checkpoints(), this process holds.
std::string checkpoints_fault(const LockedFile& lock);

/// Removes what a claim made, for a start that failed before its run began: recipe.toml is not yet there.
/// What was there before stays, and whatever else lies in the folder. Does nothing where the folder was
/// removed or replaced meanwhile.
void discard_run_folder(const RunFolder& folder);

/// Moves what an earlier start left in the folder of a run (metrics, recipe and the like; not logs, which
/// grow, nor checkpoints) into its subfolder `earlier-1`, or -2, -3, ..., and returns that; none where the
/// folder holds no run. For a start anew, by the process that writes the run. Errors: UserError with path and
/// reason.
std::optional<std::filesystem::path> keep_earlier_start(const std::filesystem::path& run_dir);

/// Has the processes that this one starts from now on use this folder, under the lock held here. It sets
/// environment variables: call it before other threads exist.
void share_with_children(const RunFolder& folder);

/// Where this host's ranks write checkpoints: `run_dir`/checkpoints. With checkpoint.dir given that folder is
/// made, and the other name is a link to it, so that whatever is given the run's folder finds them. Every
/// process may call it. Errors: UserError when the run's checkpoints lie elsewhere already, when
/// checkpoint.dir holds checkpoints and this run does not resume, when it cannot be created.
std::filesystem::path checkpoint_folder(const Recipe& recipe, const std::filesystem::path& run_dir,
                                        bool resuming);

/// Keeps other runs out of the run's folder of checkpoints while the lock lives: of checkpoint.dir, and of
/// checkpoints/ of the run folder where a run that has it as its checkpoint.dir was there. `holder` says who
/// has it, for the errors of others: the same text on all hosts of a run, whose processes may all call it
/// where they see one folder. None: that text holds the lock already, or no lock is needed. Makes
/// checkpoint.dir. Errors: UserError that names the folder and its holder.
std::optional<FileLock> lock_checkpoints(const Recipe& recipe, const std::filesystem::path& run_dir,
                                         const std::string& holder);

/// Creates the folder and its `logs` where they do not exist. No lock. Errors: UserError with path and
/// reason.
RunFolder create_run_folder(const std::filesystem::path& folder);

}  // namespace tessera::recipe
