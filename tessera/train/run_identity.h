// SPDX-License-Identifier: Apache-2.0
// Which folder, checkpoints and id belong to a training, and nobody else's.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "tessera/base/file.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/saved_by.h"
#include "tessera/mesh/mesh.h"
#include "tessera/recipe/run_folder.h"
#include "tessera/train/prepared.h"

namespace tessera::train {

/// All ranks write into the folder that rank 0 took, and holds. A rank on another disk makes its own of that
/// name. Pretended runs have names of their own: real ones do not count them. Collective.
recipe::RunFolder agree_on_run_folder(const Prepared& p, mesh::Mesh& mesh);

/// Keeps other runs out of the folder of checkpoints. Collective: all ranks fail with the first rank's error.
std::optional<FileLock> hold_checkpoints(const Prepared& p, mesh::Mesh& mesh);

/// What happened to the run's folders since this process took them. Safe from any thread.
class HeldFolders {
 public:
  HeldFolders() = default;
  HeldFolders(const recipe::RunFolder& folder, const std::optional<FileLock>& checkpoints);
  /// The text of an error once a folder was removed or replaced; empty: neither, or this process holds no
  /// lock.
  std::string fault() const;
  /// Throws that text as a UserError on all ranks, where any rank has one. Collective.
  void check(mesh::Mesh& mesh) const;

 private:
  std::filesystem::path path_;
  std::optional<LockedFile> folder_, checkpoints_;
};

/// What cannot be read or removed stays: looking for a checkpoint says why, on all ranks.
void clear_leftovers(const std::filesystem::path& checkpoints);

/// The id that the run's checkpoints carry: the folder's, else that of the run's own checkpoint that it goes
/// on from (`saved_by`, of `resumed`), else a new one. Collective: a folder of each host gets the same.
checkpoint::SavedBy identify_run(const Prepared& p, const checkpoint::SavedBy& saved_by,
                                 const std::filesystem::path& resumed, mesh::Mesh& mesh);

/// environment.json, and what has changed since the run that is resumed wrote it.
void tell_environment(const Prepared& p, Log& log);

}  // namespace tessera::train
