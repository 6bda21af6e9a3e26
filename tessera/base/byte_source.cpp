// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/byte_source.h"

#include <dirent.h>
#include <sys/stat.h>

#include <cerrno>

#include "tessera/base/file.h"

namespace tessera {
namespace fs = std::filesystem;
namespace {

class LocalFiles final : public FileSystem {
 public:
  std::unique_ptr<const ByteSource> open(const fs::path& path) const override {
    return std::make_unique<FileReader>(path);
  }

  std::vector<FolderEntry> list(const fs::path& folder, std::error_code& error) const override {
    std::vector<FolderEntry> found;
    const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(folder.c_str()), ::closedir);
    errno = entries ? 0 : errno;
    const auto next = [&]() -> const dirent* { return entries ? ::readdir(entries.get()) : nullptr; };
    while (const dirent* entry = next()) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") found.push_back({entry->d_name, is_folder_entry(folder, *entry)});
      errno = 0;
    }
    error = {errno, std::generic_category()};
    return found;
  }

  FileKind kind(const fs::path& path) const override {
    std::error_code ignored;
    const fs::file_status status = fs::status(path, ignored);
    if (!fs::exists(status)) return FileKind::kNone;
    if (fs::is_directory(status)) return FileKind::kFolder;
    return fs::is_regular_file(status) ? FileKind::kFile : FileKind::kOther;
  }

  FileIdentity identity(const fs::path& path, std::error_code& error) const override {
    struct stat info {};
    error.clear();
    if (::stat(path.c_str(), &info) != 0) error = {errno, std::generic_category()};
    const auto nanoseconds = [](const timespec& time) { return time.tv_sec * 1'000'000'000 + time.tv_nsec; };
    return {S_ISDIR(info.st_mode) ? 0 : info.st_size, nanoseconds(info.st_mtim), nanoseconds(info.st_ctim)};
  }

 private:
  /// Asks the file system only where the folder's entry does not say: for links, and on some network file
  /// systems.
  bool is_folder_entry(const fs::path& folder, const dirent& entry) const {
    if (entry.d_type != DT_LNK && entry.d_type != DT_UNKNOWN) return entry.d_type == DT_DIR;
    return is_folder(folder / entry.d_name);
  }
};

}  // namespace

std::string FileSystem::read_whole(const fs::path& path) const {
  const auto file = open(path);
  std::string content(file->size(), '\0');
  file->read(0, std::as_writable_bytes(std::span(content)));
  return content;
}

const FileSystem& local_files() {
  static const auto* const kFiles = new LocalFiles();  // never destroyed: threads may outlive main()
  return *kFiles;
}

}  // namespace tessera
