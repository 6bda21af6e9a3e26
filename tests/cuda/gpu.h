// SPDX-License-Identifier: Apache-2.0
// The GPUs of this host, for tests that need some.
#pragma once

#include <ATen/Context.h>
#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tessera/device/cuda_plugin.h"
#include "tessera/device/graph.h"
#include "tessera/device/kernels.h"
#include "tessera/device/products.h"

namespace tessera::testing {

/// TESSERA_REHEARSE=1: the CPU takes the GPU's place in the tests that need no more than a device, so that a
/// slip in a test shows before the test meets a GPU. There they compare the CPU with itself.
inline bool rehearses() {
  const char* given = std::getenv("TESSERA_REHEARSE");
  return given != nullptr && std::string(given) == "1";
}

/// Why a test that needs `wanted` GPUs cannot run here; empty: it can.
inline std::string missing_gpus(int wanted) {
  const device::OpenedCuda cuda = device::open_cuda();
  if (!cuda.missing.empty()) return "needs the CUDA plug-in: " + cuda.missing + " (CUDA=1 ./dev build)";
  const int found = cuda.plugin != nullptr ? cuda.plugin->device_count() : 0;
  if (found >= wanted) return {};
  return "needs " + std::to_string(wanted) + " GPU(s): found " + std::to_string(found);
}

/// The current device of this thread. Requires: missing_gpus(index + 1) is empty, or rehearses().
inline at::Device use_gpu(int index) {
  if (rehearses()) return at::kCPU;
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(index));
  at::globalContext().lazyInitDevice(at::kCUDA);
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device);
  return device;
}

/// As long as a Recording exists, its thread uses its own CUDA stream, as recordings of CUDA graphs require.
class Recording {
 public:
  explicit Recording(at::Device gpu)
      : streams_(at::kCUDA), before_(streams_.exchangeStream(streams_.getStreamFromGlobalPool(gpu))) {
    device::register_graphs(device::open_cuda().plugin->make_graph, at::kCUDA);
  }
  ~Recording() {
    device::register_graphs(nullptr, at::kCUDA);
    streams_.exchangeStream(before_);
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

 private:
  c10::impl::VirtualGuardImpl streams_;
  c10::Stream before_;
};

/// GPUs have the kernels and products while one lives.
class UsingKernels {
 public:
  UsingKernels() {
    if (rehearses()) return;
    device::register_kernels(device::open_cuda().plugin->kernels, at::kCUDA);
    device::register_products(device::open_cuda().plugin->products, at::kCUDA);
  }
  ~UsingKernels() {
    device::register_kernels(nullptr, at::kCUDA);
    device::register_products(nullptr, at::kCUDA);
  }
  UsingKernels(const UsingKernels&) = delete;
  UsingKernels& operator=(const UsingKernels&) = delete;
};

}  // namespace tessera::testing

/// Of a test that would also run on another kind of device: a GPU, or in a rehearsal the CPU.
#define TESSERA_NEEDS_A_DEVICE() \
  if (!::tessera::testing::rehearses()) TESSERA_NEEDS_GPUS(1)

/// Of a test that asks for CUDA itself.
#define TESSERA_NEEDS_GPUS(wanted)                                                            \
  if (const std::string missing = ::tessera::testing::missing_gpus(wanted); !missing.empty()) \
  GTEST_SKIP() << missing
