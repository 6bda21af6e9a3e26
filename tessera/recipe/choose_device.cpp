// SPDX-License-Identifier: Apache-2.0
#include "tessera/recipe/choose_device.h"

#include "tessera/base/error.h"

namespace tessera::recipe {

std::optional<int64_t> choose_gpu(DeviceKind wanted, const FoundGpus& found, LocalRank local, bool share) {
  constexpr const char* kWhere = "recipe.device";
  if (wanted == DeviceKind::kCpu) return {};
  const bool plugin = found.missing.empty();
  if (wanted == DeviceKind::kAuto && (!plugin || found.count == 0)) return {};
  if (!plugin) {
    user_error(kWhere, "the CUDA plug-in for run.device = \"cuda\": ", found.missing,
               " (build with CUDA=1 ./dev build, which takes nvcc of the CUDA 13 toolkit; or set run.device "
               "= \"cpu\")");
  }
  if (found.count == 0) {
    user_error(kWhere,
               "a GPU for run.device = \"cuda\": the CUDA plug-in found none (install NVIDIA's driver, of "
               "release 580 or later for CUDA 13; nvidia-smi lists the GPUs, CUDA_VISIBLE_DEVICES may hide "
               "them; or set "
               "run.device = \"cpu\")");
  }
  if (local.world > found.count && !share) {
    user_error(kWhere, "a GPU for each rank of this host: found ", found.count,
               found.count == 1 ? " GPU" : " GPUs", " for ", local.world, " ranks (start at most ",
               found.count, " here, or set run.device = \"cpu\"; for a test, run.share_gpu = true)");
  }
  return local.rank % found.count;
}

}  // namespace tessera::recipe
