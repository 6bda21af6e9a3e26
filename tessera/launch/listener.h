// SPDX-License-Identifier: Apache-2.0
// Where local ranks meet.
#pragma once

#include <cstdint>

namespace tessera::launch {

/// A socket that listens on a free port of 127.0.0.1. Rank 0 inherits it: no other program can take the port
/// between its choice and its use.
class Listener {
 public:
  /// Errors: UserError with the system's reason.
  Listener();
  ~Listener() { close(); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int fd() const { return fd_; }
  uint16_t port() const { return port_; }
  /// Keeps errno.
  void close();
  /// Whoever takes the descriptor closes it.
  int release();

 private:
  int fd_;
  uint16_t port_ = 0;
};

}  // namespace tessera::launch
