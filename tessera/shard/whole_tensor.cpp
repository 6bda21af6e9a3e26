// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/whole_tensor.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace tessera::shard {

void copy_to_whole(const Shard& shard, const at::Tensor& values, const at::Tensor& whole) {
  const at::NoGradGuard no_grad;
  const at::Tensor flat = whole.view({-1});
  int64_t first = 0;  // of the region's elements in `values`
  for (const Region& region : shard.regions) {
    for (const SharedRun& run : SharedRuns::in_tensor(shard.shape, region))
      flat.narrow(0, run.a, run.count).copy_(values.narrow(0, first + run.b, run.count));
    first += region.numel();
  }
}

}  // namespace tessera::shard
