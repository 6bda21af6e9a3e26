// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process: each has a Mesh of its own, found over loopback.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/on_threads.h"
#include "tessera/mesh/mesh.h"
#include "tessera/mesh/thread_ranks.h"

namespace tessera::testing {

/// A listening socket on a free port of loopback.
inline int listen_on_loopback(uint16_t* port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  TESSERA_CHECK(fd >= 0 && ::bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                ::listen(fd, 64) == 0 &&
                ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  *port = ntohs(address.sin_port);
  return fd;
}

/// Runs body(mesh) on every rank of axes; rethrows the first rank's exception.
inline void run_ranks(const std::vector<mesh::Axis>& axes, const std::function<void(mesh::Mesh&)>& body,
                      std::chrono::milliseconds timeout = std::chrono::milliseconds(30'000),
                      bool shared_memory = true, const std::vector<mesh::Span>& spans = {}) {
  mesh::run_on_thread_ranks({axes, spans, timeout, shared_memory}, body);
}

}  // namespace tessera::testing
