// SPDX-License-Identifier: Apache-2.0
// The cores that a thread may run on (sched_setaffinity(2)). Any thread.
#pragma once

#include <vector>

namespace tessera {

/// Numbers of the cores that the calling thread may run on, in increasing order. Empty where the kernel does
/// not say.
std::vector<int> cores_of_thread();

/// Lets the calling thread, and the threads that it starts from now on, run on these cores alone. false, and
/// nothing changed: no cores, or none that the process may use.
bool keep_thread_on(const std::vector<int>& cores);

}  // namespace tessera
