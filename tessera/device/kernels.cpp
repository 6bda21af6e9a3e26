// SPDX-License-Identifier: Apache-2.0
#include "tessera/device/kernels.h"

#include "tessera/device/registered.h"

namespace tessera::device {
namespace {

Registered<DeviceKernels> registered_kernels;

}  // namespace

void register_kernels(const DeviceKernels* kernels, c10::DeviceType device) {
  registered_kernels.set(kernels, device);
}

const DeviceKernels* kernels_for(const at::Tensor& t) {
  return t.numel() > 0 ? registered_kernels.get(t.device()) : nullptr;
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

}  // namespace tessera::device
