// SPDX-License-Identifier: Apache-2.0
// A folder for what one process writes and another of its own reads. Main thread only.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "tessera/base/file.h"

namespace tessera::launch {

/// A new folder in the system's place for temporary files, gone with this object. That of a process which was
/// killed is removed by the next process that makes one for the same purpose: its lock is free then.
class ScratchFolder {
 public:
  /// `purpose`: its name is tessera-<purpose>-XXXXXX. Errors: UserError when none can be made.
  explicit ScratchFolder(const std::string& purpose);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Were files written into it, with something in them?
  bool has_content() const;
  /// It stays.
  void keep();

 private:
  std::filesystem::path path_;
  std::optional<FileLock> lock_;  // none of one that stays
};

}  // namespace tessera::launch
