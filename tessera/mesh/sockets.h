// SPDX-License-Identifier: Apache-2.0
// TCP sockets by numeric address. Private to this room.
#pragma once

#include <netdb.h>

#include <cstdint>
#include <memory>
#include <string>

namespace tessera::mesh {

using NumericAddress = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// Null where `host` is not an address in digits.
NumericAddress numeric_address(const std::string& host, uint16_t port);

struct Listening {
  int fd = -1;
  uint16_t port = 0;
};
/// A socket that listens on a free port of this address of the host. Errors: CommError with the reason; `who`
/// is named: "rank 3".
Listening listen_on(const std::string& address, const std::string& who);

/// "connection refused".
std::string reason_of_errno(int error);

}  // namespace tessera::mesh
