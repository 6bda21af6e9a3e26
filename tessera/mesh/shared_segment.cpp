// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/shared_segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <string>
#include <string_view>
#include <system_error>

namespace tessera::mesh {
namespace {

constexpr int64_t kPage = 4096, kLine = 64;
constexpr const char* kName = "tessera-ranks";
constexpr char kLink[] = "/memfd:tessera-ranks (deleted)";         // what /proc shows of a segment
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;  // memfd_create(2)

constexpr int64_t rounded_up(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

/// One cache line for each count.
int64_t counts_begin() { return rounded_up(sizeof(SegmentHeader), kLine); }
int64_t slots_begin(int64_t size) { return rounded_up(counts_begin() + kKinds * size * kLine, kPage); }
int64_t segment_bytes(int64_t size) { return slots_begin(size) + kKinds * kSlots * kSlotBytes; }

[[noreturn]] void failed(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

}  // namespace

SharedSegment::SharedSegment(int64_t size, uint64_t token)
    : size_(size), fd_(::memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  if (fd_ < 0) failed("memfd_create");
  if (::ftruncate(fd_, segment_bytes(size_)) != 0) refuse("ftruncate");
  if (::fcntl(fd_, F_ADD_SEALS, kSeals) != 0) refuse("fcntl");
  map();
  header().token = token;
}

SharedSegment::SharedSegment(pid_t owner, int owners_fd, int64_t size, uint64_t token) : size_(size) {
  const std::string process = "/proc/" + std::to_string(owner);
  const std::string path = process + "/fd/" + std::to_string(owners_fd);
  // Looked at before it is opened: opening a device or a pipe may have effects.
  struct stat of_process {
  }, of_file{};
  char target[sizeof kLink] = {};
  if (::stat(process.c_str(), &of_process) != 0 || ::stat(path.c_str(), &of_file) != 0) failed(path.c_str());
  const ssize_t length = ::readlink(path.c_str(), target, sizeof target - 1);
  const bool is_segment = length == static_cast<ssize_t>(sizeof kLink) - 1 &&
                          std::string_view(target, sizeof kLink - 1) == kLink && S_ISREG(of_file.st_mode) &&
                          of_file.st_size == segment_bytes(size_);
  if (!is_segment || of_process.st_uid != ::geteuid() || of_file.st_uid != ::geteuid()) {
    errno = EPERM;
    failed("not a segment of a rank of this user");
  }
  fd_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd_ < 0) failed(path.c_str());
  struct stat opened {};
  errno = EPERM;
  if (::fstat(fd_, &opened) != 0 || opened.st_ino != of_file.st_ino || opened.st_dev != of_file.st_dev)
    refuse("the segment of a rank was exchanged");
  // The kernel may have added seals (vm.memfd_noexec).
  if ((::fcntl(fd_, F_GET_SEALS) & kSeals) != kSeals) refuse("the segment of a rank is not sealed");
  map();
  errno = EPERM;
  if (header().token != token) refuse("the segment of a rank of another run");
  close_fd();
}

void SharedSegment::refuse(const char* what) {
  const int error = errno;
  if (memory_ != nullptr && memory_ != MAP_FAILED)
    ::munmap(memory_, static_cast<size_t>(segment_bytes(size_)));
  memory_ = nullptr;
  close_fd();
  errno = error;
  failed(what);
}

void SharedSegment::map() {
  memory_ =
      ::mmap(nullptr, static_cast<size_t>(segment_bytes(size_)), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (memory_ == MAP_FAILED) refuse("mmap");
}

SharedSegment::~SharedSegment() {
  ::munmap(memory_, static_cast<size_t>(segment_bytes(size_)));
  close_fd();
}

void SharedSegment::close_fd() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::atomic<uint64_t>& SharedSegment::taken(int64_t kind, int64_t reader) {
  auto* counts = static_cast<std::byte*>(memory_) + counts_begin();
  return *reinterpret_cast<std::atomic<uint64_t>*>(counts + (kind * size_ + reader) * kLine);
}

std::byte* SharedSegment::slot(int64_t kind, uint32_t slot) {
  return static_cast<std::byte*>(memory_) + slots_begin(size_) + (kind * kSlots + slot) * kSlotBytes;
}

void sleep_until_changed(std::atomic<uint32_t>& word, uint32_t seen, int64_t milliseconds) {
  const timespec limit{milliseconds / 1000, milliseconds % 1000 * 1'000'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void wake(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

WatchedProcess::WatchedProcess(pid_t pid) : fd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {
  if (fd_ < 0) failed("pidfd_open");
}

WatchedProcess::~WatchedProcess() { ::close(fd_); }

bool WatchedProcess::ended() const {
  pollfd watched{fd_, POLLIN, 0};
  return ::poll(&watched, 1, 0) == 1;
}

}  // namespace tessera::mesh
