// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/blocked_calls.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string_view>

namespace tessera {
namespace {

constexpr int kNone = -1;

/// Where a call has its file: the place of each among its arguments.
struct FileCall {
  long number;
  const char* kind;
  int path;    // the address of a path
  int folder;  // the descriptor to which the path is relative, or the file where the path is empty
  int file;    // the descriptor of an open file
};

constexpr FileCall of_file(long number, const char* kind) { return {number, kind, kNone, kNone, 0}; }
constexpr FileCall at_folder(long number, const char* kind, int folder = 0) {
  return {number, kind, folder + 1, folder, kNone};
}
#ifdef __x86_64__
constexpr FileCall of_path(long number, const char* kind) { return {number, kind, 0, kNone, kNone}; }
#endif

constexpr FileCall kFileCalls[] = {
    at_folder(SYS_openat, "open"),
    at_folder(SYS_openat2, "open"),
    at_folder(SYS_newfstatat, "stat"),
    at_folder(SYS_statx, "stat"),
    at_folder(SYS_faccessat, "stat"),
    at_folder(SYS_faccessat2, "stat"),
    at_folder(SYS_readlinkat, "stat"),
    at_folder(SYS_mkdirat, "create"),
    at_folder(SYS_symlinkat, "create", 1),
    at_folder(SYS_unlinkat, "remove"),
    at_folder(SYS_renameat, "rename"),
    at_folder(SYS_renameat2, "rename"),
    of_file(SYS_fstat, "stat"),
    of_file(SYS_getdents64, "list"),
    of_file(SYS_read, "read"),
    of_file(SYS_readv, "read"),
    of_file(SYS_pread64, "read"),
    of_file(SYS_preadv, "read"),
    of_file(SYS_write, "write"),
    of_file(SYS_writev, "write"),
    of_file(SYS_pwrite64, "write"),
    of_file(SYS_pwritev, "write"),
    of_file(SYS_ftruncate, "write"),
    of_file(SYS_fallocate, "write"),
    of_file(SYS_fsync, "sync"),
    of_file(SYS_fdatasync, "sync"),
    of_file(SYS_sync_file_range, "sync"),
    of_file(SYS_flock, "lock"),
#ifdef __x86_64__
    of_path(SYS_open, "open"),
    of_path(SYS_stat, "stat"),
    of_path(SYS_lstat, "stat"),
    of_path(SYS_access, "stat"),
    of_path(SYS_readlink, "stat"),
    of_path(SYS_statfs, "stat"),
    of_path(SYS_mkdir, "create"),
    of_path(SYS_unlink, "remove"),
    of_path(SYS_rmdir, "remove"),
    of_path(SYS_rename, "rename"),
#endif
};

/// What /proc says; nothing of it waits for the file system that is asked about.
std::string text_of(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  std::array<char, 4096> text{};
  const ssize_t size = ::read(fd, text.data(), text.size());
  ::close(fd);
  return {text.data(), static_cast<size_t>(std::max<ssize_t>(size, 0))};
}

std::string switches_of(const std::string& task) {
  constexpr std::string_view kLine = "\nvoluntary_ctxt_switches:";
  const std::string status = text_of(task + "/status");
  const size_t at = status.find(kLine);
  if (at == std::string::npos) return "";
  const size_t begin = at + kLine.size();
  return status.substr(begin, status.find('\n', begin) - begin);
}

std::string path_of_descriptor(int64_t fd) {
  std::array<char, PATH_MAX> target{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t size = ::readlink(link.c_str(), target.data(), target.size());
  return {target.data(), static_cast<size_t>(std::max<ssize_t>(size, 0))};
}

/// A pipe may have a name on a file system, but it waits for its other end. Does not ask a file server.
bool is_pipe(int64_t fd) {
  struct statx found {};
  return ::statx(static_cast<int>(fd), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &found) == 0 &&
         S_ISFIFO(found.stx_mode);
}

/// A text in the memory of this process, which may be gone.
std::string text_at(uint64_t address) {
  const int fd = ::open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  constexpr uint64_t kPage = 4096;
  std::string text;
  std::array<char, kPage> page{};
  while (text.size() < PATH_MAX) {
    const size_t left = kPage - address % kPage;
    const ssize_t size = ::pread(fd, page.data(), left, static_cast<off_t>(address));
    if (size <= 0) break;
    const std::string_view read(page.data(), static_cast<size_t>(size));
    text += read.substr(0, read.find('\0'));
    if (read.find('\0') != std::string_view::npos) break;
    address += static_cast<uint64_t>(size);
  }
  ::close(fd);
  return text;
}

bool is_on_a_file_system(const std::string& path) {
  constexpr std::string_view kOthers[] = {"/dev/", "/proc/", "/sys/", "/memfd:", "/SYSV"};
  return path.starts_with('/') &&
         std::ranges::none_of(kOthers, [&](std::string_view other) { return path.starts_with(other); });
}

}  // namespace

std::string BlockedCall::path() const {
  // Read first: a call that has ended since then may have left anything in its place.
  std::string path = path_at_ != 0 ? text_at(path_at_) : path_of_descriptor(file_);
  if (path_at_ == 0 && is_pipe(file_)) return "";
  if (path.empty() && folder_ >= 0) path = path_of_descriptor(folder_);
  if (path_at_ != 0 && !path.starts_with('/')) {
    const std::string folder = path_of_descriptor(folder_);
    std::array<char, PATH_MAX> current{};
    if (!folder.empty()) {
      path = folder + "/" + path;
    } else if (::getcwd(current.data(), current.size()) != nullptr) {
      path = std::string(current.data()) + "/" + path;
    }
  }
  if (!is_on_a_file_system(path)) return "";
  const std::string task = "/proc/self/task/" + std::to_string(key_.thread);
  return text_of(task + "/syscall") == key_.call && switches_of(task) == key_.switches ? path : "";
}

std::vector<BlockedCall> blocked_calls() {
  std::vector<BlockedCall> found;
  const std::string tasks = "/proc/self/task";
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(tasks.c_str()), &::closedir);
  if (!folder) return found;
  const auto self = static_cast<int>(::gettid());
  while (const dirent* entry = ::readdir(folder.get())) {
    const int thread = std::atoi(entry->d_name);
    if (thread <= 0 || thread == self) continue;
    const std::string task = tasks + "/" + entry->d_name;
    BlockedCall call;
    call.key_.call = text_of(task + "/syscall");  // "running", "-1 ..." outside of a call
    std::istringstream words(call.key_.call);
    long number = -1;
    if (!(words >> number) || number < 0) continue;
    const auto* known = std::ranges::find(kFileCalls, number, &FileCall::number);
    if (known == std::end(kFileCalls)) continue;
    std::array<uint64_t, 6> arguments{};
    words >> std::hex;
    for (uint64_t& argument : arguments) {
      std::string word;
      words >> word;
      argument = std::strtoull(word.c_str(), nullptr, 16);
    }
    const auto argument = [&](int place) { return arguments.at(static_cast<size_t>(place)); };
    call.kind_ = known->kind;
    if (known->path != kNone) call.path_at_ = argument(known->path);
    if (known->folder != kNone) call.folder_ = static_cast<int32_t>(argument(known->folder));
    if (known->file != kNone) call.file_ = static_cast<int32_t>(argument(known->file));
    call.key_.thread = thread;
    call.key_.switches = switches_of(task);
    found.push_back(std::move(call));
  }
  return found;
}

}  // namespace tessera
