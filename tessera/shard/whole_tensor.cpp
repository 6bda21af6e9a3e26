// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/whole_tensor.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace tessera::shard {

void copy_to_whole(const Shard& shard, const at::Tensor& values, const at::Tensor& whole) {
  const at::NoGradGuard no_grad;
  const at::Tensor flat = whole.view({-1});
  over_regions(shard, values, [&](const Region& region, const at::Tensor& part) {
    for (const SharedRun& run : SharedRuns::in_tensor(shard.shape, region))
      flat.narrow(0, run.a, run.count).copy_(part.narrow(0, run.b, run.count));
  });
}

}  // namespace tessera::shard
