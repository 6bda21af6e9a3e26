// SPDX-License-Identifier: Apache-2.0
// One number of each rank becomes one number of all, the same bits on every rank. `what` names the wait in
// errors. Collective. Errors: CommError.
#pragma once

#include <ATen/ops/zeros.h>

#include <string>

#include "tessera/mesh/group.h"

namespace tessera::profile {

/// [ranks.size()] float64: the number of each.
inline at::Tensor of_every_rank(double mine, mesh::Group& ranks, const std::string& what) {
  at::Tensor all = at::zeros({ranks.size()}, at::kDouble);
  all[ranks.rank()] = mine;
  ranks.all_reduce(all, what);
  return all;
}

inline double largest_over_ranks(double mine, mesh::Group& ranks, const std::string& what) {
  return of_every_rank(mine, ranks, what).max().item<double>();
}

inline double sum_over_ranks(double mine, mesh::Group& ranks, const std::string& what) {
  return of_every_rank(mine, ranks, what).sum().item<double>();
}

}  // namespace tessera::profile
