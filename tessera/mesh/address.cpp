// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/address.h"

#include <netinet/in.h>
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

bool is_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr) != 0;
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
  return address.sa_family == AF_INET && ntohl(v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

in_port_t port_of(const sockaddr& address) {
  return address.sa_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                       : reinterpret_cast<const sockaddr_in&>(address).sin_port;
}

int listen_on(const sockaddr& address, socklen_t length) {
  const int fd = ::socket(address.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int on = 1, off = 0;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address.sa_family == AF_INET6) ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(fd, &address, length) == 0 && ::listen(fd, SOMAXCONN) == 0) return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
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
      user_error({.where = "mesh.connect",
                  .problem = concat("cannot resolve ", host, ", the host of rank 0: ", ::gai_strerror(error)),
                  .hint = "check MASTER_ADDR"});
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

int Address::listen(bool all_local) const {
  for (const addrinfo* address = found_.get(); address != nullptr; address = address->ai_next) {
    if (is_loopback(*address->ai_addr) && !all_local) break;
    const int fd = listen_on(*address->ai_addr, address->ai_addrlen);
    if (fd >= 0 || errno != EADDRNOTAVAIL) return fd;
  }
  const in_port_t port = port_of(*found_->ai_addr);
  sockaddr_in6 any_v6{};
  any_v6.sin6_family = AF_INET6;
  any_v6.sin6_addr = in6addr_any;
  any_v6.sin6_port = port;
  const int fd = listen_on(reinterpret_cast<const sockaddr&>(any_v6), sizeof any_v6);
  if (fd >= 0 || errno == EADDRINUSE) return fd;
  sockaddr_in any{};  // a kernel without IPv6
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_ANY);
  any.sin_port = port;
  return listen_on(reinterpret_cast<const sockaddr&>(any), sizeof any);
}

bool Address::accepts() const {
  for (const addrinfo* address = found_.get(); address != nullptr; address = address->ai_next) {
    if (accepts_one(*address)) return true;
  }
  return false;
}

}  // namespace tessera::mesh
