// SPDX-License-Identifier: Apache-2.0
// Independent pieces of work on several threads.
#pragma once

#include <cstddef>
#include <functional>

namespace tessera::data {

/// Calls `work` for 0, ..., count - 1, each once, on up to `threads` threads at the same time (the caller's
/// included; fewer where the system starts no more), and returns when all are done. Rethrows what the piece
/// with the smallest number threw; later pieces may then be left out.
void in_parallel(size_t count, size_t threads, const std::function<void(size_t)>& work);

/// Threads for work that waits for a disk or a network more than it computes: listing folders, reading
/// headers.
inline constexpr size_t kInputThreads = 16;

}  // namespace tessera::data
