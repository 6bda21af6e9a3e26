// SPDX-License-Identifier: Apache-2.0
// A save in two parts, for who writes beside other work: first what this rank will write, then the writing.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::checkpoint {

/// Who writes what in one save, as the ranks agreed.
struct SavePlan {
  /// Of the shards given, those that this rank writes: what several ranks hold alike is written once in each
  /// folder. Who saves a copy lets these point to it; nothing else may change.
  std::vector<TensorShard> shards;
  struct Agreement;
  std::shared_ptr<const Agreement> agreement;
};

/// Costs two short messages, and the names of all shards where folders are not shared. Waits for no disk.
/// Collective. Errors: as save.
SavePlan plan_save(const SaveOptions& options, const std::vector<TensorShard>& shards, int64_t step,
                   const Ranks& ranks);

/// Writes it, perhaps in another thread with Ranks of another group. Together they are the other save().
/// Collective. Errors: the same.
std::filesystem::path save(const SaveOptions& options, const SavePlan& plan, const Progress& progress,
                           const Ranks& ranks);

}  // namespace tessera::checkpoint
