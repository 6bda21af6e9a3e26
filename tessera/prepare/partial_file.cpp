// SPDX-License-Identifier: Apache-2.0
#include "tessera/prepare/partial_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"

namespace tessera::prepare {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void fail(const char* action, const fs::path& path) {
  const int error = errno;
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  user_error({.where = "prepare.write",
              .problem = concat("cannot ", action, " ", path.string(), ": ", std::strerror(error)),
              .hint = full ? "free some space, then repeat the same command: it continues from here" : ""});
}

void write_all(int fd, std::string_view bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("write", path);
    bytes.remove_prefix(static_cast<size_t>(count));
  }
}

}  // namespace

fs::path PartialFile::part_of(const fs::path& path) { return path.string() + ".part"; }

PartialFile::PartialFile(fs::path path, uint64_t keep)
    : path_(std::move(path)), part_(part_of(path_)), size_(keep) {
  fd_ = ::open(part_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) fail("create", part_);
  struct stat info {};
  const bool known = ::fstat(fd_, &info) == 0;
  if (known && static_cast<uint64_t>(info.st_size) < keep) {
    ::close(fd_);
    user_error({.where = "prepare.resume",
                .problem = concat(part_.string(), " has ", info.st_size, " bytes"),
                .expected = concat("at least ", keep, ", as an earlier run wrote them"),
                .hint = kChanged});
  }
  if (!known || ::ftruncate(fd_, static_cast<off_t>(keep)) != 0 ||
      ::lseek(fd_, static_cast<off_t>(keep), SEEK_SET) < 0) {
    ::close(fd_);
    fail("go on with", part_);
  }
}

PartialFile::~PartialFile() {
  if (fd_ >= 0) ::close(fd_);
}

void PartialFile::append(std::string_view bytes) {
  write_all(fd_, bytes, part_);
  size_ += bytes.size();
}

void PartialFile::sync() {
  if (::fsync(fd_) != 0) fail("sync", part_);
}

void PartialFile::publish() {
  sync();
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) fail("close", part_);
  if (::rename(part_.c_str(), path_.c_str()) != 0) fail("rename", part_);
  sync_folder(path_.parent_path());
}

void write_published(const fs::path& path, std::string_view bytes) {
  PartialFile file(path);
  file.append(bytes);
  file.publish();
}

void write_unsynced(const fs::path& path, std::string_view bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) fail("create", path);
  try {
    write_all(fd, bytes, path);
  } catch (...) {
    ::close(fd);
    throw;
  }
  if (::close(fd) != 0) fail("close", path);
}

void check_written(const fs::path& path, uint64_t bytes) {
  std::error_code error;
  const uint64_t found = fs::file_size(path, error);
  if (!error && found == bytes) return;
  user_error({.where = "prepare.resume",
              .problem = concat(path.string(), error ? concat(" cannot be read: ", error.message())
                                                     : concat(" has ", found, " bytes")),
              .expected = concat(bytes, " bytes, as an earlier run wrote it"),
              .hint = "put it back, or empty the folder and start again"});
}

void make_folders(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) return;
  errno = error.value();
  fail("create the folder", folder);
}

void sync_file_system(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail("open", folder);
  const bool synced = ::syncfs(fd) == 0;
  const int error = errno;
  ::close(fd);
  errno = error;
  if (!synced) fail("sync", folder);
}

}  // namespace tessera::prepare
