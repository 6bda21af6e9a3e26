// SPDX-License-Identifier: Apache-2.0
// Files in memory, under a folder that does not exist on this machine: what opens files by itself does not
// find them.
#pragma once

#include <atomic>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "tessera/base/byte_source.h"
#include "tessera/base/error.h"

namespace tessera {

class MemoryFiles final : public FileSystem {
 public:
  static constexpr const char* kRoot = "/tessera-files-in-memory";

  /// Takes a copy of a local file or folder, as kRoot/<its name>.
  std::filesystem::path add(const std::filesystem::path& local) {
    namespace fs = std::filesystem;
    const fs::path target = fs::path(kRoot) / local.filename();
    if (!fs::is_directory(local)) {
      add(target, local_files().read_whole(local));
      return target;
    }
    for (const auto& entry : fs::recursive_directory_iterator(local)) {
      if (entry.is_regular_file())
        add(target / entry.path().lexically_relative(local), local_files().read_whole(entry.path()));
    }
    return target;
  }
  void add(const std::filesystem::path& path, std::string content) {
    contents_[path] = std::move(content);
    for (auto folder = path.parent_path(); folder != folder.root_path(); folder = folder.parent_path())
      folders_.insert(folder);
  }
  int opened() const { return opened_; }

  std::unique_ptr<const ByteSource> open(const std::filesystem::path& path) const override {
    const auto found = contents_.find(path);
    if (found == contents_.end())
      user_error({.where = "test", .problem = path.string() + " is not in memory"});
    ++opened_;
    return std::make_unique<Bytes>(path, found->second);
  }
  std::vector<FolderEntry> list(const std::filesystem::path& folder, std::error_code& error) const override {
    error.clear();
    if (!folders_.contains(normal(folder)))
      error = std::make_error_code(std::errc::no_such_file_or_directory);
    std::vector<FolderEntry> entries;
    for (const auto& inside : folders_) {
      if (inside.parent_path() == normal(folder)) entries.push_back({inside.filename().string(), true});
    }
    for (const auto& [path, content] : contents_) {
      if (path.parent_path() == normal(folder)) entries.push_back({path.filename().string(), false});
    }
    return entries;
  }
  FileKind kind(const std::filesystem::path& path) const override {
    if (folders_.contains(normal(path))) return FileKind::kFolder;
    return contents_.contains(path) ? FileKind::kFile : FileKind::kNone;
  }
  FileIdentity identity(const std::filesystem::path& path, std::error_code& error) const override {
    error.clear();
    const auto found = contents_.find(path);
    if (found != contents_.end()) return {static_cast<int64_t>(found->second.size()), 1, 1};
    if (!folders_.contains(normal(path))) error = std::make_error_code(std::errc::no_such_file_or_directory);
    return {0, 1, 1};
  }

 private:
  class Bytes final : public ByteSource {
   public:
    Bytes(const std::filesystem::path& path, const std::string& content)
        : ByteSource(path), content_(content) {}
    uint64_t size() const override { return content_.size(); }
    void read(uint64_t offset, std::span<std::byte> bytes) const override {
      if (offset > content_.size() || bytes.size() > content_.size() - offset)
        user_error({.where = "test", .problem = path().string() + " is cut off"});
      if (!bytes.empty()) std::memcpy(bytes.data(), content_.data() + offset, bytes.size());
    }

   private:
    const std::string& content_;
  };

  /// Without a slash at the end.
  static std::filesystem::path normal(const std::filesystem::path& path) {
    return (path / "").lexically_normal().parent_path();
  }

  std::map<std::filesystem::path, std::string> contents_;
  std::set<std::filesystem::path> folders_;
  mutable std::atomic<int> opened_ = 0;
};

}  // namespace tessera
