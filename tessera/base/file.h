// SPDX-License-Identifier: Apache-2.0
// Files: whole reads, and writes that either happen or don't. Safe from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/byte_source.h"

namespace tessera {

/// The whole file. Errors: UserError that names path and reason.
std::string read_file(const std::filesystem::path& path);

/// The path beside `path`, which does not exist, whose name is most like its name; empty: none is near, or
/// the folder holds more than 10,000 entries.
std::string nearest_in_folder(const std::filesystem::path& path);

/// Writes to a temporary name beside `path`, syncs, renames, syncs the folder: after a crash there is the
/// old content or the new, never a part. Errors: UserError (disk full, no permission) that names the path;
/// the old content stays and the temporary file is removed.
void write_file_atomic(const std::filesystem::path& path, std::string_view content);

/// Throws UserError "[file.create] cannot create PATH: REASON".
[[noreturn]] void cannot_create(const std::filesystem::path& path, const std::error_code& reason);

/// Makes a rename or a new file in this folder survive a power cut.
void sync_folder(const std::filesystem::path& folder);

/// An open file that is written in pieces. Every call throws UserError with path and reason on failure.
class FileWriter {
 public:
  explicit FileWriter(std::filesystem::path path);
  ~FileWriter();  // closes; removes the file unless finish() succeeded
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(std::span<const std::byte> bytes);
  /// Syncs to disk and closes.
  void finish();

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  int64_t written_ = 0, flushed_ = 0;  // bytes
  bool finished_ = false;
};

/// Random reads of one local file, any number of threads at once. Errors: UserError with path and reason.
class FileReader final : public ByteSource {
 public:
  explicit FileReader(std::filesystem::path file);
  ~FileReader() override;

  uint64_t size() const override { return size_; }
  /// Reads exactly bytes.size() bytes from `offset`; short reads are a UserError ("file is cut off").
  void read(uint64_t offset, std::span<std::byte> bytes) const override;

 private:
  int fd_ = -1;
  uint64_t size_ = 0;
};

/// A file as it was when it was locked. Tells later whether its path still names that file.
struct LockedFile {
  std::filesystem::path path;  // absolute
  uint64_t device = 0, inode = 0;

  /// False: the file was removed, or its path names a different file. True where the file system gives no
  /// answer (a file server that is away for a moment). Requires that a process still holds the lock: only
  /// then no new file gets the same inode.
  bool is_in_place() const;
};

/// A lock on a file that other processes see, held until destruction or the end of the process, however that
/// comes.
class FileLock {
 public:
  /// Creates the file if need be. Empty: another process holds the lock. On a file system without locks the
  /// lock is given and holds nobody off. Errors: UserError with path and reason.
  /// `patience`: how long to try; kLook where a process that only looks (is_held) must not be taken for a
  /// holder.
  static std::optional<FileLock> try_take(const std::filesystem::path& path,
                                          std::chrono::milliseconds patience = {});
  static constexpr std::chrono::milliseconds kLook{100};
  /// Does a process hold the lock? Makes no file.
  static bool is_held(const std::filesystem::path& path);
  const LockedFile& file() const { return file_; }
  ~FileLock();
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_ = -1;
  LockedFile file_;
};

/// A folder to write a result to, with the folders above it. Those that were missing are made, and removed
/// again at the end of the scope if they are empty: a failure leaves none behind.
class ResultFolder {
 public:
  /// Errors: UserError with path and reason.
  explicit ResultFolder(const std::filesystem::path& path);
  ~ResultFolder();
  ResultFolder(const ResultFolder&) = delete;
  ResultFolder& operator=(const ResultFolder&) = delete;

 private:
  std::vector<std::filesystem::path> made_;  // the deepest first
};

/// A fresh folder that is removed with all it holds at the end of its scope.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(std::string_view prefix);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace tessera
