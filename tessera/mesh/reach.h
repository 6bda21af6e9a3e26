// SPDX-License-Identifier: Apache-2.0
// Which ranks can open TCP connections to which. Private to this room.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/mesh/store.h"

namespace tessera::mesh {

/// Reason of a connection to a port on which no process listens.
inline constexpr const char* kRefused = "connection refused";

/// A rank that does not accept a connection.
struct Unreachable {
  int64_t rank = 0;
  std::string address;  // "10.0.0.3:41021"
  std::string reason;   // "no answer within 8 s", "connection refused"
};

/// Each rank listens on a separate port for as long as this object lives. The kernel accepts connections
/// there, so that a rank counts as reachable while its process computes or is stopped; a thread closes them.
class Reach {
 public:
  /// Listens on `address` (numeric) and tells the other ranks so through `store`. Errors: CommError.
  Reach(StorePointer store, int64_t rank, int64_t world, std::string address);
  ~Reach();
  Reach(const Reach&) = delete;
  Reach& operator=(const Reach&) = delete;

  /// Connects to every other rank. Collective. Errors: CommError on every rank, which names the pairs of
  /// ranks of which one does not reach the other, with their addresses.
  void check(std::chrono::milliseconds limit);
  /// The other ranks that do not accept a connection within `limit`; returns as soon as all have. Any thread,
  /// after check().
  std::vector<Unreachable> unreachable(std::chrono::milliseconds limit) const;
  /// "rank 1 (10.0.0.2) cannot reach rank 2 (10.0.0.3:41021): no answer within 8 s; ..."; empty where there
  /// are none.
  std::string describe(const std::vector<Unreachable>& ranks) const;

 private:
  StorePointer store_;
  int64_t rank_, world_;
  std::string address_;
  int listener_ = -1;
  std::thread acceptor_;                                  // empties the queue of connections, which holds few
  std::vector<std::pair<std::string, uint16_t>> places_;  // by rank
};

}  // namespace tessera::mesh
