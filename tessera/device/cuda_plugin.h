// SPDX-License-Identifier: Apache-2.0
// What libtessera_cuda.so offers, and the door to it. Nothing links it: it is opened where a GPU may be, with
// dlopen, and asked for `tessera_cuda_plugin` with dlsym. It brings LibTorch's CUDA side with it, so that
// tensors of CUDA devices, their streams and page-locked memory work through LibTorch's common interface from
// then on: no other room links CUDA. The functions are safe from any thread and throw tessera::Error. Who
// calls nccl_backend includes Backend.hpp and Store.hpp of c10d as well.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace tessera::device {

struct DeviceProducts;  // products.h
struct DeviceKernels;   // kernel_table.h
class DeviceGraph;      // graph.h

struct CudaDevice {
  std::string name;  // "NVIDIA H200"
  int major = 0;     // compute capability
  int minor = 0;     //
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
};

struct CudaPlugin {
  /// Counted up with every change of this struct; whoever opens the library compares it with
  /// kCudaPluginVersion.
  int version;
  /// GPUs this process may use; 0 without a GPU or driver.
  int (*device_count)();
  /// Facts of one of them, the thread's current device from then on. Requires: 0 <= index < device_count().
  CudaDevice (*device)(int index);
  /// Runs a small kernel of ours on the GPU, the thread's current device from then on: a UserError when this
  /// build has no code for its generation.
  void (*check_device)(int index);
  /// An NCCL group of `size` processes that meet in `store`, this one as `rank` on the GPU `device`. Local:
  /// NCCL itself connects at the first collective.
  c10::intrusive_ptr<c10d::Backend> (*nccl_backend)(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int size, int device, std::chrono::milliseconds timeout);
  /// Linear layers by cuBLASLt, for tensors of any of the GPUs.
  const DeviceProducts* products;
  /// Fused kernels, alike.
  const DeviceKernels* kernels;
  /// Records what the thread queues on its current stream, not the default one of its current device.
  /// `beside`: MakeDeviceGraph.
  std::unique_ptr<DeviceGraph> (*make_graph)(const DeviceGraph* beside);
};

inline constexpr int kCudaPluginVersion = 6;
inline constexpr const char* kCudaPluginSymbol = "tessera_cuda_plugin";

/// The plug-in, or why there is none.
struct OpenedCuda {
  const CudaPlugin* plugin = nullptr;
  std::string missing;  // empty where it is there, even when it is not loaded because the host has no GPU
};
/// Opens the plug-in that lies beside this library, once in a process; the first call takes seconds. A host
/// without NVIDIA's driver does not load it.
OpenedCuda open_cuda();
/// The same for a file of any name.
OpenedCuda open_cuda(const std::filesystem::path& library);

/// "2.28.9", of NCCL's own number 22809.
std::string nccl_version_text(int number);
/// Of the NCCL that this process has loaded, with the plug-in; "none" where it has not.
std::string nccl_version();

}  // namespace tessera::device

extern "C" const tessera::device::CudaPlugin* tessera_cuda_plugin();
