// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/memory_store.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

constexpr const char* kMemoryStore = "data.ram_cache";
constexpr uint64_t kUnit = 8;  // entries begin at multiples of it
constexpr int kSizeBits = 24;  // of a place; the other 40 bits are the offset in units
constexpr uint64_t kLargest = (uint64_t{1} << kSizeBits) - 1;
// A place that holds nothing yet, and one that somebody is filling. If that process dies the entry stays
// unfilled: others fetch it from the source as before.
constexpr uint64_t kEmpty = 0, kBusy = 1;

static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared between processes");

[[noreturn]] void fail(const char* what) {
  user_error(
      {.where = kMemoryStore,
       .problem = concat("no memory that the ranks of a host can share: ", what, ": ", std::strerror(errno)),
       .hint = "set data.ram_cache = \"none\""});
}

bool read_all(int fd, char* out, size_t size, uint64_t offset) {
  for (size_t done = 0; done < size;) {
    const ssize_t count = ::pread(fd, out + done, size - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  return true;
}

// Written, not copied into a mapping: where memory has run out this fails, and the other would be killed.
bool write_all(int fd, const char* bytes, size_t size, uint64_t offset) {
  for (size_t done = 0; done < size;) {
    const ssize_t count = ::pwrite(fd, bytes + done, size - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  return true;
}

}  // namespace

struct MemoryStore::Header {
  std::atomic<uint64_t> next;  // offset of the first free byte
  uint64_t begin, end;         // of the entries' bytes
};

MemoryStore::MemoryStore(int fd, int64_t count)
    : fd_(fd), mapped_bytes_(sizeof(Header) + static_cast<size_t>(count) * sizeof(uint64_t)) {}

std::unique_ptr<MemoryStore> MemoryStore::make(int64_t count, int64_t bytes) {
  const int fd = ::memfd_create("tessera-samples", MFD_CLOEXEC);
  if (fd < 0) fail("memfd_create");
  std::unique_ptr<MemoryStore> store(new MemoryStore(fd, count));
  const uint64_t begin = (store->mapped_bytes_ + kUnit - 1) / kUnit * kUnit;
  const uint64_t end = begin + static_cast<uint64_t>(bytes);
  if (::ftruncate(fd, static_cast<off_t>(end)) != 0) fail("ftruncate");
  // The mapped part is taken now: a page that is missing later would be a bus error.
  if (const int error = ::posix_fallocate(fd, 0, static_cast<off_t>(store->mapped_bytes_)); error != 0) {
    errno = error;
    fail("posix_fallocate");
  }
  void* memory = ::mmap(nullptr, store->mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) fail("mmap");
  store->header_ = new (memory) Header{{begin}, begin, end};  // the places behind it are zeros: empty
  return store;
}

std::unique_ptr<MemoryStore> MemoryStore::open(const std::string& address, int64_t count) {
  const int fd = ::open(address.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) fail(address.c_str());
  std::unique_ptr<MemoryStore> store(new MemoryStore(fd, count));
  void* memory = ::mmap(nullptr, store->mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) fail("mmap");
  store->header_ = static_cast<Header*>(memory);
  return store;
}

MemoryStore::~MemoryStore() {
  if (header_ != nullptr) ::munmap(header_, mapped_bytes_);
  if (fd_ >= 0) ::close(fd_);
}

std::string MemoryStore::address() const { return concat("/proc/", ::getpid(), "/fd/", fd_); }

std::atomic<uint64_t>& MemoryStore::place(int64_t entry) const {
  return reinterpret_cast<std::atomic<uint64_t>*>(header_ + 1)[entry];
}

std::optional<std::string> MemoryStore::get(int64_t entry) const {
  const uint64_t place = this->place(entry).load(std::memory_order_acquire);
  if (place == kEmpty || place == kBusy) return {};
  std::string bytes(place & kLargest, '\0');
  if (!read_all(fd_, bytes.data(), bytes.size(), (place >> kSizeBits) * kUnit)) return {};
  return bytes;
}

void MemoryStore::put(int64_t entry, const std::string& bytes) {
  if (bytes.empty() || bytes.size() > kLargest) return;
  std::atomic<uint64_t>& place = this->place(entry);
  uint64_t expected = kEmpty;
  if (place.load(std::memory_order_relaxed) != kEmpty || !place.compare_exchange_strong(expected, kBusy))
    return;
  const uint64_t size = (bytes.size() + kUnit - 1) / kUnit * kUnit;
  uint64_t offset = header_->next.load();
  bool room = true;
  do {
    room = offset + size <= header_->end;
  } while (room && !header_->next.compare_exchange_weak(offset, offset + size));
  const bool kept = room && write_all(fd_, bytes.data(), bytes.size(), offset);
  place.store(kept ? (offset / kUnit) << kSizeBits | bytes.size() : kEmpty, std::memory_order_release);
}

int64_t MemoryStore::used() const { return static_cast<int64_t>(header_->next.load() - header_->begin); }

}  // namespace tessera::data
