// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/thread_cores.h"

#include <sched.h>

#include <algorithm>

namespace tessera {

std::vector<int> cores_of_thread() {
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {  // the kernel refuses a mask smaller than its own
    cpu_set_t* mask = CPU_ALLOC(cpus);
    const size_t size = CPU_ALLOC_SIZE(cpus);
    std::vector<int> cores;
    if (::sched_getaffinity(0, size, mask) == 0) {
      for (int core = 0; core < cpus; ++core) {
        if (CPU_ISSET_S(static_cast<size_t>(core), size, mask)) cores.push_back(core);
      }
    }
    CPU_FREE(mask);
    if (!cores.empty()) return cores;
  }
  return {};
}

bool keep_thread_on(const std::vector<int>& cores) {
  if (cores.empty()) return false;
  const int highest = *std::max_element(cores.begin(), cores.end());
  cpu_set_t* mask = CPU_ALLOC(highest + 1);
  if (mask == nullptr) return false;
  const size_t size = CPU_ALLOC_SIZE(highest + 1);
  CPU_ZERO_S(size, mask);
  for (const int core : cores) CPU_SET_S(static_cast<size_t>(core), size, mask);
  const bool kept = ::sched_setaffinity(0, size, mask) == 0;
  CPU_FREE(mask);
  return kept;
}

}  // namespace tessera
