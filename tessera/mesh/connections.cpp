// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/connections.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "tessera/base/words.h"

namespace tessera::mesh {
namespace {

constexpr int kIdleSeconds = 10, kProbeSeconds = 5, kProbes = 3;  // of keep-alive: 25 s in all
constexpr unsigned kUserTimeoutMilliseconds = 25'000;             // tcp(7)
constexpr uint32_t kSilentMilliseconds = 20'000;
constexpr uint8_t kUnanswered = 3;  // retransmissions or probes of a full window, in a row

/// The inode of a connected TCP socket, 0 of anything else.
ino_t inode_of_connection(int fd) {
  int protocol = 0;
  socklen_t size = sizeof protocol;
  if (::getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) != 0 || protocol != IPPROTO_TCP) return 0;
  sockaddr_storage peer{};
  socklen_t length = sizeof peer;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) return 0;
  struct stat state {};
  return ::fstat(fd, &state) == 0 ? state.st_ino : 0;
}

template <typename Value>
void set_option(int fd, int level, int option, Value value) {
  ::setsockopt(fd, level, option, &value, sizeof value);
}

}  // namespace

Connections Connections::all() {
  Connections found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const auto fd = parse_number<int>(entry.path().filename().string());
    if (!fd) continue;
    if (const ino_t inode = inode_of_connection(*fd); inode != 0) found.sockets_.emplace(*fd, inode);
  }
  return found;
}

Connections Connections::of(int fd) {
  Connections one;
  if (const ino_t inode = inode_of_connection(fd); inode != 0) one.sockets_.emplace(fd, inode);
  return one;
}

Connections Connections::opened(const Connections& before, const Connections& now) {
  Connections opened;
  std::ranges::set_difference(now.sockets_, before.sockets_,
                              std::inserter(opened.sockets_, opened.sockets_.end()));
  return opened;
}

void Connections::keep_alive() const {
  for (const auto& [fd, inode] : sockets_) {
    if (inode_of_connection(fd) != inode) continue;
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  }
}

void Connections::expect_acknowledgements() const {
  for (const auto& [fd, inode] : sockets_) {
    if (inode_of_connection(fd) == inode)
      set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMilliseconds);
  }
}

bool Connections::one_is_dead() const {
  return std::ranges::any_of(sockets_, [](const Socket& socket) {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (inode_of_connection(socket.first) != socket.second) return false;
    if (::getsockopt(socket.first, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
    const bool unanswered = info.tcpi_retransmits >= kUnanswered || info.tcpi_probes >= kUnanswered;
    return unanswered && info.tcpi_last_ack_recv >= kSilentMilliseconds;
  });
}

void Connections::shut_down() const {
  for (const auto& [fd, inode] : sockets_) {
    if (inode_of_connection(fd) == inode) ::shutdown(fd, SHUT_RDWR);
  }
}

}  // namespace tessera::mesh
