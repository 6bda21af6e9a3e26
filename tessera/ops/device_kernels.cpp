#include "tessera/ops/device_kernels.h"

#include <atomic>

namespace tessera::ops {
namespace {

std::atomic<const DeviceKernels*> kernels_in_use = nullptr;
std::atomic<c10::DeviceType> device_of_kernels = c10::DeviceType::CUDA;

}  // namespace

void use_device_kernels(const DeviceKernels* kernels, c10::DeviceType device) {
  device_of_kernels = device;
  kernels_in_use = kernels;
}

const DeviceKernels* device_kernels(const at::Tensor& t) {
  const DeviceKernels* kernels = kernels_in_use.load();
  const bool fits = kernels != nullptr && t.device().type() == device_of_kernels.load() && t.numel() > 0;
  return fits ? kernels : nullptr;
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
