// SPDX-License-Identifier: Apache-2.0
// Numbered byte strings in memory that processes of a host share. Private to this room.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace tessera::data {

/// Any number of threads and processes may call get() and put() at once; a process that dies in the middle
/// of either harms no other.
class MemoryStore {
 public:
  /// Makes a store for entries 0 .. count - 1 of at most `bytes` together. Memory is taken as it is used, but
  /// for 8 bytes an entry. Errors: UserError with the reason.
  static std::unique_ptr<MemoryStore> make(int64_t count, int64_t bytes);
  /// Opens the store of another process of this user, or of this one. Errors: UserError with the reason.
  static std::unique_ptr<MemoryStore> open(const std::string& address, int64_t count);
  ~MemoryStore();
  MemoryStore(const MemoryStore&) = delete;
  MemoryStore& operator=(const MemoryStore&) = delete;

  /// For open(), while this object lives.
  std::string address() const;
  std::optional<std::string> get(int64_t entry) const;
  /// Keeps it where there is room; the first one put stays.
  void put(int64_t entry, const std::string& bytes);
  /// Bytes taken by entries so far.
  int64_t used() const;

 private:
  struct Header;
  MemoryStore(int fd, int64_t count);
  std::atomic<uint64_t>& place(int64_t entry) const;

  int fd_ = -1;
  size_t mapped_bytes_ = 0;
  Header* header_ = nullptr;  // shared; the places of the entries follow it
};

}  // namespace tessera::data
