// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/summed_gradient.h"

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include "tessera/base/error.h"
#include "tessera/device/kernels.h"
#include "tessera/ops/fast_path.h"

namespace tessera::ops {

bool has_summed_concat(const at::Tensor& like) {
  return device::number_of(like) && device::kernels_for(like, &device::DeviceKernels::sum_parts,
                                                        &device::DeviceKernels::concat_sums) != nullptr;
}

SummedGradient summed_concat(const std::vector<at::Tensor>& parts) {
  TESSERA_CHECK_EQ(parts.size(), static_cast<size_t>(device::ConcatSums::kParts));
  RECORD_USER_SCOPE("tessera::concat_sums");
  std::vector<at::Tensor> given;  // live until the kernel is queued
  for (const at::Tensor& part : parts) given.push_back(as_rows(part).contiguous());
  const device::DeviceKernels& kernels = *device::kernels_for(given[0]);
  const int64_t rows = given[0].size(0), width = given[0].size(1) * device::ConcatSums::kParts;
  const auto options = given[0].options();
  const SummedGradient result{at::empty({rows, width}, options), at::empty({width}, options)};
  const at::Tensor partial = at::empty({kernels.sum_parts(rows, width), width}, options.dtype(at::kFloat));
  kernels.concat_sums(
      {.number = *device::number_of(given[0]),
       .rows = rows,
       .width = width,
       .part = {given[0].const_data_ptr(), given[1].const_data_ptr(), given[2].const_data_ptr()},
       .result = result.rows.mutable_data_ptr(),
       .partial = partial.mutable_data_ptr<float>(),
       .sums = result.sums.mutable_data_ptr()},
      device::KernelStream(kernels, given[0]));
  return result;
}

}  // namespace tessera::ops
