// SPDX-License-Identifier: Apache-2.0
// Where bytes of data and weights come from: files by their paths. Local files are the implementation
// (local_files()); others derive from FileSystem. Safe from any thread, at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace tessera {

/// An open file that is read at any place.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  virtual uint64_t size() const = 0;
  /// Reads exactly bytes.size() bytes from `offset`. Errors: UserError with path and reason; also where the
  /// file is shorter.
  virtual void read(uint64_t offset, std::span<std::byte> bytes) const = 0;
  const std::filesystem::path& path() const { return path_; }

 protected:
  explicit ByteSource(std::filesystem::path path) : path_(std::move(path)) {}

 private:
  std::filesystem::path path_;
};

enum class FileKind { kNone, kFile, kFolder, kOther };

/// Tells two states of a file or folder apart without reading it.
struct FileIdentity {
  int64_t size = 0;      // bytes; 0 for a folder
  int64_t modified = 0;  // time of the last change of content, in nanoseconds since 1970
  int64_t changed = 0;   // the same of content, name, owner or mode, which no program can set back
};

struct FolderEntry {
  std::string name;  // bytes of any encoding
  bool is_folder = false;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  /// Errors: UserError with path and reason where there is no such file.
  virtual std::unique_ptr<const ByteSource> open(const std::filesystem::path& path) const = 0;
  /// What lies in a folder, in no order. `error`: why it cannot be read to its end; cleared else.
  virtual std::vector<FolderEntry> list(const std::filesystem::path& folder,
                                        std::error_code& error) const = 0;
  /// Follows links. kNone: nothing is there, or it cannot be looked at.
  virtual FileKind kind(const std::filesystem::path& path) const = 0;
  /// Of a file or a folder (whose entries it tells apart, not their content). `error`: as in list().
  virtual FileIdentity identity(const std::filesystem::path& path, std::error_code& error) const = 0;

  bool exists(const std::filesystem::path& path) const { return kind(path) != FileKind::kNone; }
  bool is_file(const std::filesystem::path& path) const { return kind(path) == FileKind::kFile; }
  bool is_folder(const std::filesystem::path& path) const { return kind(path) == FileKind::kFolder; }
  /// The whole file. Errors: as open().
  std::string read_whole(const std::filesystem::path& path) const;
};

/// The files of this machine. It lives as long as the program.
const FileSystem& local_files();

}  // namespace tessera
