// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process: each has a mesh of its own, met over loopback. For commands that compare
// layouts without starting processes, and for tests.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "tessera/mesh/mesh.h"

namespace tessera::mesh {

struct ThreadRanks {
  std::vector<Axis> axes;
  std::vector<Span> spans = {};
  std::chrono::milliseconds timeout{600'000};  // of meeting and of every collective
  bool shared_memory = true;                   // false: the threads communicate over TCP
  std::vector<Link> links = {};
  int64_t threads = 0;  // of a rank, which stays on its own cores (launch::stay_on_own_cores); 0: on any
};

/// Runs body(mesh) for every rank of the axes, each on a thread of its own, and waits for all. Errors:
/// rethrows the first exception if it is no CommError, and collectives that the other ranks wait in end with
/// a CommError; if a CommError comes first, that of the lowest rank that failed.
void run_on_thread_ranks(const ThreadRanks& ranks, const std::function<void(Mesh&)>& body);

}  // namespace tessera::mesh
