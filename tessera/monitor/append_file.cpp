// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tessera/base/file_operation.h"

namespace tessera::monitor {
namespace {

constexpr size_t kMostWaiting = size_t{16} << 20;

}  // namespace

AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}

bool AppendFile::append(std::string_view bytes) {
  if (waiting_.size() + bytes.size() <= kMostWaiting) waiting_ += bytes;
  const FileOperation operation("append", path_);
  if (fd_ < 0 && !open()) return fail();
  return write_waiting() || fail();
}

bool AppendFile::open() {
  const int truncate = start_ == Start::kEmpty ? O_TRUNC : 0;
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | truncate, 0644);
  return fd_ >= 0;
}

bool AppendFile::write_waiting() {
  const off_t start = ::lseek(fd_, 0, SEEK_END);
  size_t written = 0;
  while (written < waiting_.size()) {
    const ssize_t count = ::write(fd_, waiting_.data() + written, waiting_.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int error = errno;
      // Half a line would spoil the next one, half a record all that follow.
      if (written > 0 && ::ftruncate(fd_, start) != 0) waiting_.erase(0, written);
      errno = error;
      return false;
    }
    written += static_cast<size_t>(count);
  }
  waiting_.clear();
  return true;
}

bool AppendFile::fail() {
  error_ = std::strerror(errno);
  return false;
}

}  // namespace tessera::monitor
