// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/device/kernels.h"

#include "tessera/ops/device/of_device.h"

namespace tessera::ops {
namespace {

OfDevice<const DeviceKernels*> kernels_in_use;

}  // namespace

void use_device_kernels(const DeviceKernels* kernels, c10::DeviceType device) {
  kernels_in_use.set(kernels, device);
}

const DeviceKernels* device_kernels(const at::Tensor& t) {
  return t.numel() > 0 ? kernels_in_use.get(t.device()) : nullptr;
}

std::optional<Number> number_of(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kFloat:
      return Number::kFloat;
    case at::kHalf:
      return Number::kHalf;
    case at::kBFloat16:
      return Number::kBFloat16;
    default:
      return std::nullopt;
  }
}

}  // namespace tessera::ops
