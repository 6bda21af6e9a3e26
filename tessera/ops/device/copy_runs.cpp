// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/device/copy_runs.h"

#include <ATen/record_function.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/device/kernels.h"

namespace tessera::ops {

bool has_copy_runs(const CopyRun& copy) {
  const auto from = device::number_of(copy.from), to = device::number_of(copy.to);
  return from && to && (to == from || to == device::Number::kFloat) &&
         copy.from.device() == copy.to.device() &&
         device::kernels_for(copy.to, &device::DeviceKernels::copy_runs) != nullptr;
}

void copy_runs(const std::vector<CopyRun>& copies, bool add) {
  RECORD_USER_SCOPE("tessera::copy_runs");
  for (size_t first = 0; first < copies.size(); first += device::CopyPass::kMostRuns) {
    const at::Tensor& like = copies[first].to;
    device::CopyPass pass{.from = *device::number_of(copies[first].from),
                          .to = *device::number_of(like),
                          .add = add,
                          .runs = 0,
                          .run = {}};
    for (size_t i = first; i < std::min(copies.size(), first + device::CopyPass::kMostRuns); ++i) {
      const CopyRun& copy = copies[i];
      TESSERA_CHECK(copy.from.is_contiguous() && copy.to.is_contiguous());
      TESSERA_CHECK_EQ(copy.from.numel(), copy.to.numel());
      TESSERA_CHECK(device::number_of(copy.from) == pass.from && device::number_of(copy.to) == pass.to);
      pass.run[pass.runs++] = {copy.from.const_data_ptr(), copy.to.mutable_data_ptr(), copy.to.numel()};
    }
    const device::DeviceKernels& kernels = *device::kernels_for(like);
    kernels.copy_runs(pass, device::KernelStream(kernels, like));
  }
}

}  // namespace tessera::ops
