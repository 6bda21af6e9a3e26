// SPDX-License-Identifier: Apache-2.0
// A folder of checkpoints: which are complete, which may go, which is best. Private to the room.
//
// Reading is safe at any time. What changes the folder is called by one of the ranks that see it, during a
// save only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::checkpoint {

/// Complete checkpoints by step; none where there is no such folder. A crash while a step was saved once more
/// may have left only its predecessor "step_N.old": that one counts then. Errors: UserError when the folder
/// or a checkpoint in it cannot be read.
std::map<int64_t, std::filesystem::path> complete_checkpoints(const std::filesystem::path& folder);
/// As complete_checkpoints(), of one step, whatever is wrong with others.
std::optional<std::filesystem::path> complete_checkpoint(const std::filesystem::path& folder, int64_t step);
/// Does this folder hold a whole checkpoint? Errors: UserError when it cannot be read.
bool is_complete(const std::filesystem::path& checkpoint);

/// "use step_00000900": the newest complete checkpoint beside this one, or that there is none.
std::string advice_beside(const std::filesystem::path& checkpoint);
/// Throws UserError: the folder has no manifest.
[[noreturn]] void refuse_incomplete(const char* where, const std::filesystem::path& checkpoint);

struct Best {
  int64_t step = 0;
  double score = 0;
  std::string score_of = "";
};
/// What best.json lists, the best first; empty without one. Errors: UserError when it cannot be understood.
std::vector<Best> read_best(const std::filesystem::path& folder);
/// An empty list removes the file.
void write_best(const std::filesystem::path& folder, const std::vector<Best>& best);
/// Puts options' score of `step` into the list and ends it after options.keep_best. A file that cannot be
/// understood is made anew.
void mark_best(const std::filesystem::path& folder, const SaveOptions& options, int64_t step);

/// Clears what saves that were killed left behind: folders half written, half removed or half replaced,
/// marks.
void recover(const std::filesystem::path& folder);

/// Makes the written folder of `step` the checkpoint of `step`. One that exists already is moved aside
/// first, and put back should the move fail. Errors: UserError.
void commit(const std::filesystem::path& folder, int64_t step);
/// After a commit: removes what was moved aside, or puts it back and removes what was committed.
void finish_commit(const std::filesystem::path& folder, int64_t step);
void undo_commit(const std::filesystem::path& folder, int64_t step);

/// Removes all complete checkpoints but the options.keep newest, multiples of options.keep_every, those in
/// best.json and `step`. A checkpoint that cannot be removed stays; the next save tries again.
void remove_old(const std::filesystem::path& folder, const SaveOptions& options, int64_t step);

}  // namespace tessera::checkpoint
