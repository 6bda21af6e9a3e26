// SPDX-License-Identifier: Apache-2.0
#include "tessera/recipe/choose_device.h"

#include "tessera/base/error.h"

namespace tessera::recipe {

std::optional<int64_t> choose_gpu(DeviceKind wanted, const FoundGpus& found, LocalRank local, bool share,
                                  const DeviceSettings& settings) {
  if (wanted == DeviceKind::kCpu) return {};
  const bool plugin = found.missing.empty();
  if (wanted == DeviceKind::kAuto && (!plugin || found.count == 0)) return {};
  if (!plugin) {
    user_error(
        {.where = settings.where,
         .problem = concat(settings.cuda, " needs the CUDA plug-in, ", found.missing),
         .expected = {},
         .hint = concat("build it with CUDA=1 ./dev build (needs nvcc of the CUDA 13 toolkit), or set ",
                        settings.cpu)});
  }
  if (found.count == 0) {
    user_error({.where = settings.where,
                .problem = concat(settings.cuda, ", but no GPU was found"),
                .expected = "a GPU with NVIDIA's driver of release 580 or later (CUDA 13)",
                .hint = concat("check nvidia-smi and CUDA_VISIBLE_DEVICES, or set ", settings.cpu)});
  }
  if (local.world > found.count && !share) {
    user_error(
        {.where = settings.where,
         .problem = concat(local.world, " ranks on this host, but only ", found.count,
                           found.count == 1 ? " GPU" : " GPUs"),
         .expected = "a GPU for each rank",
         .hint = concat("start at most ", found.count, found.count == 1 ? " rank" : " ranks",
                        " on this host, or set ", settings.cpu, " (for tests: ", settings.share, ")")});
  }
  return local.rank % found.count;
}

}  // namespace tessera::recipe
