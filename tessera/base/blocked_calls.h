// SPDX-License-Identifier: Apache-2.0
// The calls of the kernel on files in which threads of this process wait, whatever code made them: LibTorch,
// std::filesystem, other libraries. Read from /proc; on kernels that do not offer it there are none. Any
// thread.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// One call that had not returned when it was seen.
class BlockedCall {
 public:
  /// Equal for a call that is seen twice, different for two calls of one thread.
  struct Key {
    int thread = 0;
    std::string call;      // number, arguments and stack pointer
    std::string switches;  // how often the thread had given up its CPU
    auto operator<=>(const Key&) const = default;
  };
  const Key& key() const { return key_; }
  /// "open", "stat", "list", "read", "write", "sync", "create", "rename", "remove" or "lock".
  const std::string& kind() const { return kind_; }
  /// The file; empty where the call is over or its file is none of a file system (a pipe, a socket, /dev,
  /// /proc).
  std::string path() const;

 private:
  friend std::vector<BlockedCall> blocked_calls();
  Key key_;
  std::string kind_;
  int64_t folder_ = -1, file_ = -1;  // descriptors
  uint64_t path_at_ = 0;             // address of the path that the call was given; 0: none
};

/// Calls of all threads but this one. Costs about 10 microseconds a thread.
std::vector<BlockedCall> blocked_calls();

}  // namespace tessera
