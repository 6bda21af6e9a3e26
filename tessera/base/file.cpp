// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file_operation.h"
#include "tessera/base/output_file.h"
#include "tessera/base/text.h"

namespace tessera {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMostWritten = size_t{64} << 20;  // by one call: slow disks are to show progress
constexpr int64_t kMostUnflushed = int64_t{256} << 20;

[[noreturn]] void fail(const char* action, const fs::path& path, int error) {
  const std::string where = concat("file.", action);
  user_error({.where = where,
              .problem = concat("cannot ", action, " ", path.string(), ": ", std::strerror(error)),
              .hint = error == ENOSPC || error == EDQUOT ? "free some space or choose another folder" : ""});
}

void write_all(int fd, std::span<const std::byte> bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const FileOperation operation("write", path);
    const ssize_t count = ::write(fd, bytes.data(), std::min(bytes.size(), kMostWritten));
    if (count < 0) {
      if (errno == EINTR) continue;
      fail("write", path, errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

}  // namespace

std::string read_file(const fs::path& path) { return local_files().read_whole(path); }

std::string nearest_in_folder(const fs::path& path) {
  constexpr size_t kMostEntries = 10'000;
  const fs::path named = path.has_filename() ? path : path.parent_path();
  const fs::path folder = named.parent_path();
  std::vector<std::string> names;
  std::error_code failed;
  for (fs::directory_iterator at(folder.empty() ? "." : folder, failed), end; !failed && at != end;
       at.increment(failed)) {
    if (names.size() == kMostEntries) return "";
    names.push_back(at->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  const std::string near = nearest(named.filename().string(), names);
  return near.empty() ? "" : (folder / near).string();
}

void write_file_atomic(const fs::path& path, std::string_view content) {
  const OutputFile output(path);
  FileWriter writer(output.write_to());
  writer.write(std::as_bytes(std::span(content)));
  writer.finish();
  output.commit();
}

void cannot_create(const fs::path& path, const std::error_code& reason) {
  user_error(
      {.where = "file.create", .problem = concat("cannot create ", path.string(), ": ", reason.message())});
}

void sync_folder(const fs::path& folder) {
  const fs::path target = folder.empty() ? fs::path(".") : folder;
  const FileOperation operation("sync", target);
  const int fd = ::open(target.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail("open", target, errno);
  ::fsync(fd);  // some network file systems refuse this on folders; the rename itself stands
  ::close(fd);
}

FileWriter::FileWriter(fs::path path) : path_(std::move(path)) {
  const FileOperation operation("create", path_);
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail("create", path_, errno);
}

FileWriter::~FileWriter() {
  if (fd_ >= 0) ::close(fd_);
  struct stat info {};
  if (!finished_ && ::lstat(path_.c_str(), &info) == 0 && S_ISREG(info.st_mode)) ::unlink(path_.c_str());
}

void FileWriter::write(std::span<const std::byte> bytes) {
  write_all(fd_, bytes, path_);
  written_ += static_cast<int64_t>(bytes.size());
  if (written_ - flushed_ < kMostUnflushed) return;
  // Else all of a large file would reach the disk in finish(), in one call that shows no progress for
  // minutes.
  const FileOperation operation("sync", path_);
  ::sync_file_range(fd_, flushed_, written_ - flushed_,
                    SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  flushed_ = written_;
}

void FileWriter::finish() {
  const FileOperation operation("sync", path_);
  if (::fsync(fd_) != 0 && errno != EINVAL) fail("sync", path_, errno);  // EINVAL: a pipe or a device
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0) fail("close", path_, errno);
  finished_ = true;
}

FileReader::FileReader(fs::path file) : ByteSource(std::move(file)) {
  const FileOperation operation("open", path());
  fd_ = ::open(path().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe would wait for a writer
  if (fd_ < 0) fail("open", path(), errno);
  struct stat info {};
  if (::fstat(fd_, &info) != 0) {
    const int error = errno;
    ::close(fd_);
    fail("stat", path(), error);
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd_);
    user_error({.where = "file.open", .problem = path().string() + " is not a regular file"});
  }
  size_ = static_cast<uint64_t>(info.st_size);
}

FileReader::~FileReader() {
  if (fd_ >= 0) ::close(fd_);
}

void FileReader::read(uint64_t offset, std::span<std::byte> bytes) const {
  const size_t wanted = bytes.size();
  while (!bytes.empty()) {
    const FileOperation operation("read", path());
    const ssize_t count =
        ::pread(fd_, bytes.data(), std::min<size_t>(bytes.size(), 1U << 30), static_cast<off_t>(offset));
    if (count < 0) {
      if (errno == EINTR) continue;
      fail("read", path(), errno);
    }
    if (count == 0) {
      user_error({.where = "file.read",
                  .problem = concat(path().string(), " is cut off: it has ", size_, " bytes"),
                  .expected = concat(wanted, " bytes at offset ", offset + bytes.size() - wanted)});
    }
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
}

std::optional<FileLock> FileLock::try_take(const fs::path& path, std::chrono::milliseconds patience) {
  const FileOperation operation("lock", path);
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) fail("lock", path, errno);
  FileLock lock(fd);
  struct stat info {};
  if (::fstat(fd, &info) != 0) fail("lock", path, errno);
  lock.file_ = {fs::absolute(path), info.st_dev, info.st_ino};
  const auto end = std::chrono::steady_clock::now() + patience;
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    if (std::chrono::steady_clock::now() >= end) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return lock;
}

bool FileLock::is_held(const fs::path& path) {
  const FileOperation operation("lock", path);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return false;
  if (fd < 0) fail("lock", path, errno);
  const bool held = ::flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return held;
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

FileLock::FileLock(FileLock&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), file_(std::move(other.file_)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(file_, other.file_);
  return *this;
}

bool LockedFile::is_in_place() const {
  const FileOperation operation("stat", path);
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return errno != ENOENT && errno != ENOTDIR;
  return info.st_dev == device && info.st_ino == inode;
}

ResultFolder::ResultFolder(const fs::path& path) {
  std::error_code failed, ignored;
  fs::path missing = fs::absolute(path, failed).lexically_normal();
  if (!missing.has_filename()) missing = missing.parent_path();  // "folder/"
  while (!failed && missing.has_relative_path() &&
         fs::symlink_status(missing, ignored).type() == fs::file_type::not_found) {
    made_.push_back(missing);
    missing = missing.parent_path();
  }
  if (!failed) fs::create_directories(path, failed);
  if (!failed) return;
  for (const fs::path& folder : made_) fs::remove(folder, ignored);
  cannot_create(path, failed);
}

ResultFolder::~ResultFolder() {
  std::error_code ignored;
  for (const fs::path& folder : made_)
    if (!fs::remove(folder, ignored)) return;  // it is not empty
}

TemporaryFolder::TemporaryFolder(std::string_view prefix) {
  std::string pattern = (fs::temp_directory_path() / concat(prefix, ".XXXXXX")).string();
  if (::mkdtemp(pattern.data()) == nullptr) fail("create", pattern, errno);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace tessera
