// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/launched.h"

namespace tessera::mesh {

Rendezvous rendezvous(const launch::Ranks& ranks, std::chrono::milliseconds timeout) {
  Rendezvous rendezvous;
  rendezvous.rank = ranks.rank;
  rendezvous.world = ranks.world;
  rendezvous.all_local = ranks.local_world == ranks.world;
  rendezvous.host = rendezvous.all_local && !ranks.master_is_served ? "127.0.0.1" : ranks.master_host;
  rendezvous.port = ranks.master_port;
  rendezvous.listen_fd = ranks.master_listen_fd;
  rendezvous.served = ranks.master_is_served;
  rendezvous.timeout = timeout;
  rendezvous.stop = launch::stop_requested;
  return rendezvous;
}

}  // namespace tessera::mesh
