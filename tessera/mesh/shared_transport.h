// SPDX-License-Identifier: Apache-2.0
// The transport through shared memory, once its segments are there. Private to this room.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "tessera/mesh/shared_segment.h"
#include "tessera/mesh/transport.h"

namespace tessera::mesh {

/// All transports of a mesh: a rank that waits in one moves the others on. Any thread.
class SharedTransports {
 public:
  void add(std::weak_ptr<Transport> transport);
  std::vector<std::shared_ptr<Transport>> transports();

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<Transport>> transports_;
};

/// `segments` and `processes` by rank, this rank's own among them.
std::shared_ptr<Transport> make_shared_transport(std::vector<std::unique_ptr<SharedSegment>> segments,
                                                 std::vector<std::unique_ptr<WatchedProcess>> processes,
                                                 int64_t rank, const Patience& patience,
                                                 const std::shared_ptr<SharedTransports>& all);

}  // namespace tessera::mesh
