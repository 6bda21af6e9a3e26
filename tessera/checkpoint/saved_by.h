// SPDX-License-Identifier: Apache-2.0
// Which run saved a checkpoint. Several runs may have had one checkpoint.dir, one after the other: what is
// read as the checkpoint of one of them must not be that of another.
#pragma once

#include <filesystem>
#include <string>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::checkpoint {

/// File of a run's folder that holds the run's id.
inline constexpr const char* kRunId = "run_id";

struct SavedBy {
  std::string id;      // random, of the run; empty: unknown
  std::string folder;  // of the run, when it saved
};

/// Of a run that begins.
std::string new_run_id();
/// The id in a run's folder; empty without one.
std::string run_id(const std::filesystem::path& run_dir);

/// A JSON object as text, for the key "run" of Progress::json, and back. Of a checkpoint that says nothing:
/// empty.
std::string to_json_text(const SavedBy& run);
SavedBy saved_by(const Progress& progress);

/// Errors: UserError where `checkpoint`, which lies in the checkpoints/ of a run's folder, was saved by
/// another run: names both. Where one of the two has no id nothing is known.
void refuse_other_run(const std::filesystem::path& checkpoint);

}  // namespace tessera::checkpoint
