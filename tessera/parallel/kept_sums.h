// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace tessera::parallel {

/// The sums of one segment's cut layers between its forward pass and the second run in backward (recompute).
/// The second run needs no exchange for a sum that was kept, or whose value nothing reads.
struct KeptSums {
  bool keeps = false;                 // else the second run sums again
  bool is_again = false;              // the second run
  std::vector<at::Tensor> sums = {};  // [own samples, ...], in the order of the pass
  size_t next = 0;                    // to be taken in the second run
};

}  // namespace tessera::parallel
