// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/CUDAStream.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "tessera/base/error.h"
#include "tessera/cuda/device.h"
#include "tessera/cuda/graph.h"
#include "tessera/cuda/kernels.h"
#include "tessera/cuda/products.h"
#include "tessera/device/cuda_plugin.h"
#include "tessera/device/kernel_table.h"

namespace tessera::cuda {
namespace {

device::CudaDevice describe(int index) {
  const Device found = device(index);
  return {.name = found.name,
          .major = found.major,
          .minor = found.minor,
          .total_bytes = static_cast<int64_t>(found.total_bytes),
          .free_bytes = static_cast<int64_t>(found.free_bytes)};
}

c10::intrusive_ptr<c10d::Backend> nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                               int size, int device_index,
                                               std::chrono::milliseconds timeout) {
  const int devices = device_count();
  if (device_index < 0 || device_index >= devices) {
    user_error({.where = "cuda.nccl_backend",
                .problem = concat("rank ", rank, " asks for GPU ", device_index),
                .expected = concat("one of the ", devices, " GPUs of this host, counted from 0"),
                .hint = "start no more ranks on this host than it has GPUs"});
  }
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, std::move(options));
  // Without a bound device NCCL guesses one from the rank, which is wrong on every host but the first.
  backend->setBoundDeviceId(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device_index)));
  return backend;
}

void* current_stream(int device) {
  return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream();
}

constexpr device::DeviceKernels kKernels = kernels_on(current_stream);

constexpr device::CudaPlugin kPlugin{.version = device::kCudaPluginVersion,
                                     .device_count = device_count,
                                     .device = describe,
                                     .check_device = check_device,
                                     .nccl_backend = nccl_backend,
                                     .products = &kProducts,
                                     .kernels = &kKernels,
                                     .make_graph = make_graph};

}  // namespace
}  // namespace tessera::cuda

const tessera::device::CudaPlugin* tessera_cuda_plugin() { return &tessera::cuda::kPlugin; }
