// SPDX-License-Identifier: Apache-2.0
// This process's memory, from the kernel. Safe from any thread.
#pragma once

#include <cstdint>

namespace tessera {

int64_t resident_bytes();       // now
int64_t peak_resident_bytes();  // the highest so far
/// Of resident_bytes(), pages of shared memory, which the machine holds once and the kernel counts in every
/// process that has touched them: the messages between the ranks of a host, a data set that they hold
/// together.
int64_t shared_resident_bytes();

/// What was resident at one moment, from which the growth of memory since then is told.
struct MemoryBefore {
  int64_t resident = resident_bytes(), shared = shared_resident_bytes();
  /// Of the peak, without pages of shared memory.
  int64_t peak_growth() const;
};

/// A point of the curve of resident memory in the calling thread's trace, if it has one (base/trace.h).
void trace_resident_memory();

}  // namespace tessera
