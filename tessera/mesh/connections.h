// SPDX-License-Identifier: Apache-2.0
// TCP connections of this process that a library opened. Private to this room.
#pragma once

#include <sys/types.h>

#include <set>
#include <utility>

namespace tessera::mesh {

/// The connected TCP sockets that a piece of code has opened in this process. A library (Gloo, c10d) owns
/// them; a socket that it has closed meanwhile is left alone, also where its number was given to another
/// file.
class Connections {
 public:
  /// All of the process, now.
  static Connections all();
  static Connections of(int fd);
  /// Those of `now` that `before` lacks.
  static Connections opened(const Connections& before, const Connections& now);

  bool empty() const { return sockets_.empty(); }
  /// An idle connection to a host that is gone breaks after 25 s.
  void keep_alive() const;
  /// Data that gets no acknowledgement for 25 s break the connection. Not for connections whose receiver may
  /// have no room for minutes: such a connection would break as well.
  void expect_acknowledgements() const;
  /// Is there one on which data wait for an acknowledgement, and the peer's kernel has answered nothing for
  /// 20 s? A peer that only does not read, because it computes or is stopped, answers.
  bool one_is_dead() const;
  /// Ends all of them, for both sides.
  void shut_down() const;

 private:
  using Socket = std::pair<int, ino_t>;
  std::set<Socket> sockets_;
};

}  // namespace tessera::mesh
