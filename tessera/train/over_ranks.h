// One number of each rank becomes one number of all.
#pragma once

#include <ATen/ops/zeros.h>

#include <string>

#include "tessera/mesh/group.h"

namespace tessera::train {

/// The largest of the ranks' numbers, the same bits on every rank. `what` names the wait in errors.
/// Collective. Errors: CommError.
inline double largest_over_ranks(double mine, mesh::Group& ranks, const std::string& what) {
  at::Tensor all = at::zeros({ranks.size()}, at::kDouble);
  all[ranks.rank()] = mine;
  ranks.all_reduce(all, what);
  return all.max().item<double>();
}

}  // namespace tessera::train
