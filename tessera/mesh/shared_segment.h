// SPDX-License-Identifier: Apache-2.0
// Memory that one rank writes and the other ranks of its host read. Private to this room.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tessera::mesh {

/// A slot holds one message; a rank has so many messages of a kind out at once.
inline constexpr int64_t kSlotBytes = int64_t{1} << 19, kSlots = 16;
/// Kinds of operations, each with an order of its own.
inline constexpr int64_t kGathers = 0, kExchanges = 1, kKinds = 2;

/// What a rank tells of its messages of one kind. Written by their writer.
struct Outbox {
  alignas(64) std::atomic<uint64_t> published;  // messages so far
  std::atomic<uint32_t> slot[kSlots];           // message m lies in slot[m % kSlots]
  std::atomic<uint64_t> operation[kSlots];      // and belongs to an operation of these bytes,
  std::atomic<uint32_t> label[kSlots];          // and of a collective of this label
};

/// A segment begins with this; zero is the start of everything.
struct SegmentHeader {
  alignas(64) std::atomic<uint32_t> bell;    // rung for this rank: something came, or there is room again
  alignas(64) std::atomic<uint32_t> asleep;  // this rank waits for its bell in the kernel
  std::atomic<uint32_t> gave_up;             // abort() was called
  std::atomic<uint64_t> token;               // of the group that the segment was made for
  Outbox boxes[kKinds];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

/// One rank's segment, mapped. It has no name, so nothing stays behind however its processes end; only what
/// is touched takes memory. Not moved while used.
class SharedSegment {
 public:
  /// A new one, for the group of `size` ranks that has drawn `token`. Throws std::system_error.
  SharedSegment(int64_t size, uint64_t token);
  /// That of another process of this user. Nothing is mapped before it is known to be such a segment: memory
  /// without a name, of this size, sealed against being cut short, of a process of this user; nothing is used
  /// before its token is known to be `token`. Throws std::system_error where it is not, or where the kernel
  /// does not allow it.
  SharedSegment(pid_t owner, int owners_fd, int64_t size, uint64_t token);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  SegmentHeader& header() { return *static_cast<SegmentHeader*>(memory_); }
  /// How many of the segment's messages `reader` has taken. Written by that reader.
  std::atomic<uint64_t>& taken(int64_t kind, int64_t reader);
  std::byte* slot(int64_t kind, uint32_t slot);
  /// The file descriptor others open the segment by; -1 once closed.
  int fd() const { return fd_; }
  /// When all have opened it.
  void close_fd();

 private:
  void map();
  /// Closes the file and unmaps what is mapped, then throws.
  [[noreturn]] void refuse(const char* what);

  int64_t size_;
  int fd_;
  void* memory_ = nullptr;
};

/// Waits until somebody adds to `word`, which was `seen`, or `milliseconds` have passed. Any process.
void sleep_until_changed(std::atomic<uint32_t>& word, uint32_t seen, int64_t milliseconds);
/// Wakes all who sleep on `word`.
void wake(std::atomic<uint32_t>& word);

/// A process, to be asked whether it still runs; its number may be given to another one later without harm.
class WatchedProcess {
 public:
  /// Throws std::system_error.
  explicit WatchedProcess(pid_t pid);
  ~WatchedProcess();
  WatchedProcess(const WatchedProcess&) = delete;
  WatchedProcess& operator=(const WatchedProcess&) = delete;
  bool ended() const;

 private:
  int fd_;
};

}  // namespace tessera::mesh
