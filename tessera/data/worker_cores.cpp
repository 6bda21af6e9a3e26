// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/worker_cores.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::data {

std::vector<int> spare_cores(const std::vector<int>& allowed, int64_t local_rank, int64_t local_world,
                             int64_t threads) {
  const int64_t share = static_cast<int64_t>(allowed.size()) / std::max<int64_t>(1, local_world);
  if (threads >= share || local_rank < 0 || local_rank >= local_world) return {};
  const auto end = allowed.begin() + (local_rank + 1) * share;
  return {end - (share - threads), end};
}

Workers choose_workers(int64_t wanted, const RankOnHost& rank, const std::vector<int>& allowed) {
  const int64_t spare = std::max<int64_t>(0, rank.cores - rank.threads), most = std::max<int64_t>(1, spare);
  const std::string cores = concat(rank.cores, rank.cores == 1 ? " core" : " cores");
  Workers workers{.count = wanted >= 0 ? wanted : most};
  if (rank.threads > rank.cores) {
    workers.warnings.push_back(concat("run.threads = ", rank.threads, " is more than the ", cores,
                                      " a rank has: a step takes longer than with ", rank.cores));
  }
  if (workers.count > most) {
    workers.warnings.push_back(concat("data.workers = ", workers.count, " and ", rank.threads,
                                      " compute threads share ", cores, " a rank: each will be slower"));
  }
  if (workers.count <= spare && static_cast<int64_t>(allowed.size()) == rank.cores_of_all) {
    workers.cores = spare_cores(allowed, rank.local_rank, rank.local_world, rank.threads);
  }
  return workers;
}

}  // namespace tessera::data
