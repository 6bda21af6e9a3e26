#include "tessera/data/worker_cores.h"

#include <sched.h>

#include <algorithm>

namespace tessera::data {

std::vector<int> allowed_cores() {
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

std::vector<int> spare_cores(const std::vector<int>& allowed, int64_t local_rank, int64_t local_world,
                             int64_t threads) {
  const int64_t share = static_cast<int64_t>(allowed.size()) / std::max<int64_t>(1, local_world);
  if (threads >= share || local_rank < 0 || local_rank >= local_world) return {};
  const auto end = allowed.begin() + (local_rank + 1) * share;
  return {end - (share - threads), end};
}

}  // namespace tessera::data
