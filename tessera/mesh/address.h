// SPDX-License-Identifier: Apache-2.0
// Where ranks meet, as the sockets of this host see it. Private to this room.
#pragma once

#include <netdb.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace tessera::mesh {

class Address {
 public:
  /// Resolves the name; a name server that does not answer is asked again for up to `patience`. Errors:
  /// UserError (no such name).
  Address(const std::string& host, uint16_t port, std::chrono::milliseconds patience);

  /// The address of this host that reaches it: what the kernel would route from (no packet is sent).
  std::string from_here() const;
  /// Does somebody accept connections there? Takes up to a second for each address of the name.
  bool accepts() const;
  /// A socket that listens there, for the process that serves the store: on the first of the name's addresses
  /// that is one of this host's. On all interfaces where none is, and where the address is a loopback one
  /// (/etc/hosts often gives a host's own name one) and ranks of other hosts are to come. -1, with errno,
  /// where the port is taken or the kernel refuses.
  int listen(bool all_local) const;

 private:
  struct Free {
    void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
  };
  std::unique_ptr<addrinfo, Free> found_;
};

}  // namespace tessera::mesh
