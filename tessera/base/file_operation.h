// SPDX-License-Identifier: Apache-2.0
// Which operations on files are under way in this process: a file server that hangs stops them without an
// error, in calls that cannot be interrupted. blocked_calls.h sees further calls, without their purpose. Safe
// from any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

/// One call of the kernel on a file, for as long as the object lives.
class FileOperation {
 public:
  /// `kind`: "write", "sync". Both are kept by reference.
  FileOperation(const char* kind, const std::filesystem::path& path);
  ~FileOperation();
  FileOperation(const FileOperation&) = delete;
  FileOperation& operator=(const FileOperation&) = delete;

 private:
  friend struct FileOperations;
  const char* kind_;
  const std::filesystem::path& path_;
  uint64_t number_ = 0;
  FileOperation *older_ = nullptr, *newer_ = nullptr;
};

struct FileOperationSeen {
  std::string kind, path;
  uint64_t number = 0;  // tells it from every other operation of the process
};

/// All operations under way, the oldest first.
std::vector<FileOperationSeen> file_operations_under_way();
/// How many operations have ended.
uint64_t ended_file_operations();

}  // namespace tessera
