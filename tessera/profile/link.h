// SPDX-License-Identifier: Apache-2.0
// How fast ranks exchange numbers, measured.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "tessera/mesh/mesh.h"

namespace tessera::profile {

/// Bytes a second that each rank sends, the slowest rank's.
struct LinkRates {
  double gather = 0, reduce = 0;
  std::string how = {};  // "shared memory", "TCP", and where fewer ranks were measured how many
};

/// Median of a few all-gathers and reduce-scatters of kLinkBytes over all ranks. `wire`: dtype of gradients
/// on their way. Takes a second or two where ranks share a host. Zeros for one rank. Collective.
LinkRates measure_link(mesh::Mesh& mesh, at::ScalarType wire);

/// The same between `world` ranks of this host, at most kMostThreads, as threads of this process, whose limit
/// of open files becomes what it may be. Errors: UserError (no socket), CommError.
LinkRates measure_local_link(int64_t world, at::ScalarType wire, bool shared_memory);

inline constexpr int64_t kMostThreads = 8;
/// Large enough that beginnings do not count, and the size of a unit of a large model.
inline constexpr int64_t kLinkBytes = 32 << 20;

}  // namespace tessera::profile
