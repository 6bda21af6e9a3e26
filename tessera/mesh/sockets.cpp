// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/sockets.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/words.h"

namespace tessera::mesh {

NumericAddress numeric_address(const std::string& host, uint16_t port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) found = nullptr;
  return {found, &::freeaddrinfo};
}

Listening listen_on(const std::string& address, const std::string& who) {
  const NumericAddress found = numeric_address(address, 0);
  Listening listening;
  if (found) listening.fd = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  char port[NI_MAXSERV];
  const int fd = listening.fd;
  const bool listens = fd >= 0 && ::bind(fd, found->ai_addr, found->ai_addrlen) == 0 &&
                       ::listen(fd, SOMAXCONN) == 0 &&
                       ::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) == 0 &&
                       ::getnameinfo(reinterpret_cast<sockaddr*>(&bound), length, nullptr, 0, port,
                                     sizeof port, NI_NUMERICSERV) == 0;
  if (!listens) {
    const std::string reason = found ? reason_of_errno(errno) : "not an address";
    if (fd >= 0) ::close(fd);
    throw CommError(concat("[mesh.connect] ", who, " cannot listen on ", address, ": ", reason));
  }
  listening.port = parse_number<uint16_t>(port).value_or(0);
  return listening;
}

std::string reason_of_errno(int error) {
  std::string text = std::strerror(error);
  if (!text.empty()) text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  return text;
}

}  // namespace tessera::mesh
