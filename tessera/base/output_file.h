// SPDX-License-Identifier: Apache-2.0
// The file that a user named for a result: it gets the old content or the new, and stays what it is.
#pragma once

#include <filesystem>

namespace tessera {

/// What is written to write_to() and finished becomes the content of `path` at commit(). A file (one that
/// links lead to, too) is replaced by a rename from a name beside it, so that its links stay and a crash
/// leaves no part under the name. What a killed process left beside it goes with the next write of `path` on
/// the same host. A pipe or a character device (/dev/null, /dev/stdout) is written to as it is.
/// Errors: UserError with path and reason; a folder, a socket or a block device is refused.
class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& path);
  const std::filesystem::path& write_to() const { return write_to_; }
  /// Once; the written file is removed where the rename fails.
  void commit() const;

 private:
  std::filesystem::path target_, write_to_;  // the same: written to as it is
};

}  // namespace tessera
