// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/listener.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::launch {

Listener::Listener() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (fd_ < 0 || ::bind(fd_, generic, size) != 0 || ::listen(fd_, SOMAXCONN) != 0 ||
      ::getsockname(fd_, generic, &size) != 0) {
    close();
    user_error({.where = "launch.local",
                .problem = concat("cannot listen on 127.0.0.1 for local ranks: ", std::strerror(errno))});
  }
  port_ = ntohs(address.sin_port);
}

void Listener::close() {
  const int error = errno;
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  errno = error;
}

int Listener::release() { return std::exchange(fd_, -1); }

}  // namespace tessera::launch
