// SPDX-License-Identifier: Apache-2.0
// Files that grow under a temporary name until they are whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace tessera::prepare {

/// The hint for a file that is not as an earlier run left it.
constexpr const char* kChanged = "the file was changed; empty the folder and start again";

/// PATH.part, which becomes PATH. One thread. The part stays when it is not published: the next run goes on.
/// Errors: UserError with path and reason; on a full disk what to do.
class PartialFile {
 public:
  /// Opens PATH.part and forgets what lies behind its first `keep` bytes.
  /// Errors: also when it is shorter than `keep`.
  explicit PartialFile(std::filesystem::path path, uint64_t keep = 0);
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  static std::filesystem::path part_of(const std::filesystem::path& path);
  uint64_t size() const { return size_; }
  void append(std::string_view bytes);
  /// Waits until the bytes are on disk.
  void sync();
  /// Syncs, closes, renames to PATH, syncs the folder.
  void publish();

 private:
  std::filesystem::path path_, part_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

/// A whole small file through PATH.part, durable on return.
void write_published(const std::filesystem::path& path, std::string_view bytes);
/// Writes a whole file without waiting for the disk; sync_file_system() does that for many at once.
void write_unsynced(const std::filesystem::path& path, std::string_view bytes);
/// Errors: UserError when `path` is not a file of `bytes` bytes, as an earlier run left it.
void check_written(const std::filesystem::path& path, uint64_t bytes);
/// Makes a folder and those above it.
void make_folders(const std::filesystem::path& folder);
/// Waits until all that was written to the file system of `folder` is on disk.
void sync_file_system(const std::filesystem::path& folder);

}  // namespace tessera::prepare
