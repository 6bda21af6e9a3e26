// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/address.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "tessera/base/error.h"

namespace tessera::mesh {
namespace {

constexpr int kConnectMilliseconds = 1000;

class Socket {
 public:
  Socket(int family, int type) : fd_(::socket(family, type | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

bool accepts_one(const addrinfo& address) {
  const Socket socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK);
  if (socket.fd() < 0) return false;
  if (::connect(socket.fd(), address.ai_addr, address.ai_addrlen) == 0) return true;
  if (errno != EINPROGRESS) return false;
  pollfd connected{socket.fd(), POLLOUT, 0};
  if (::poll(&connected, 1, kConnectMilliseconds) != 1) return false;
  int error = 0;
  socklen_t size = sizeof error;
  return ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
}

}  // namespace

Address::Address(const std::string& host, uint16_t port, std::chrono::milliseconds patience) {
  const auto start = std::chrono::steady_clock::now();
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  int error = 0;
  while ((error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found)) != 0) {
    const bool later = error == EAI_AGAIN && std::chrono::steady_clock::now() - start < patience;
    if (!later) {
      user_error("mesh.connect", "the name of the host of rank 0: cannot resolve ", host, ": ",
                 ::gai_strerror(error), " (check MASTER_ADDR)");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  found_.reset(found);
}

std::string Address::from_here() const {
  const Socket socket(found_->ai_family, SOCK_DGRAM);
  sockaddr_storage local{};
  socklen_t length = sizeof local;
  char text[NI_MAXHOST];
  const bool known = socket.fd() >= 0 && ::connect(socket.fd(), found_->ai_addr, found_->ai_addrlen) == 0 &&
                     ::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&local), &length) == 0 &&
                     ::getnameinfo(reinterpret_cast<sockaddr*>(&local), length, text, sizeof text, nullptr, 0,
                                   NI_NUMERICHOST) == 0;
  return known ? text : "127.0.0.1";
}

bool Address::accepts() const {
  for (const addrinfo* address = found_.get(); address != nullptr; address = address->ai_next) {
    if (accepts_one(*address)) return true;
  }
  return false;
}

}  // namespace tessera::mesh
