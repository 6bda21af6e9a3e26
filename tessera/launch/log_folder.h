// SPDX-License-Identifier: Apache-2.0
// Where local ranks above 0 write. Private to this room; main thread only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "tessera/launch/scratch_folder.h"

namespace tessera::launch {

/// The given folder, or a temporary one that stays only if something failed.
class LogFolder {
 public:
  /// `given`: empty for a temporary one; `procs` 1: none is needed. Errors: UserError when it cannot be made.
  LogFolder(const std::string& given, int64_t procs);

  std::filesystem::path file(int64_t rank) const;  // empty for rank 0
  /// Keeps a temporary folder in which something was written; " (logs in PATH)", else "".
  std::string keep();

 private:
  std::filesystem::path path_;
  std::optional<ScratchFolder> temporary_;
};

}  // namespace tessera::launch
