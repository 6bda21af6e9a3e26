// SPDX-License-Identifier: Apache-2.0
#include "tessera/device/cuda_plugin.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <cstdlib>

#include "tessera/base/error.h"

namespace tessera::device {
namespace fs = std::filesystem;
namespace {

/// NVIDIA's driver makes these, WSL's the second.
bool driver_is_there() { return fs::exists("/dev/nvidiactl") || fs::exists("/dev/dxg"); }

fs::path beside_this_library() {
  Dl_info info{};
  ::dladdr(reinterpret_cast<const void*>(&nccl_version), &info);
  return fs::absolute(info.dli_fname).parent_path() / "libtessera_cuda.so";
}

/// LibTorch's CUDA side, which lies beside the LibTorch of this process. It brings its own CUDA runtime,
/// cuBLAS and cuDNN (by its RPATH, which LD_LIBRARY_PATH does not change). The plug-in needs the same
/// libraries by name alone and so gets those: a process must not hold two of them.
fs::path torch_cuda() {
  Dl_info info{};
  ::dladdr(reinterpret_cast<const void*>(&at::get_num_threads), &info);
  return fs::absolute(info.dli_fname).parent_path() / "libtorch_cuda.so";
}

struct Loaded {
  void* handle = nullptr;
  std::string fault;  // why it is null
};

Loaded load_library(const fs::path& library) {
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* reason = handle == nullptr ? ::dlerror() : nullptr;
  return {handle, handle != nullptr   ? ""
                  : reason != nullptr ? concat("found none that loads: ", reason)
                                      : concat("found none that loads: ", library.string())};
}

/// A group has two NCCL communicators (transport_device.cpp), and a rank is in several groups. Kernels of two
/// communicators on one GPU may wait for each other's place there for ever, unless NCCL (2.26 and later)
/// keeps them in the order in which the host launched them, which is the same on all ranks. NCCL reads this
/// once, when it makes its first communicator. A value that the user has set stays.
void order_nccl_launches() { ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0); }

}  // namespace

OpenedCuda open_cuda(const fs::path& library) {
  order_nccl_launches();
  const auto [handle, fault] = load_library(library);
  if (handle == nullptr) return {nullptr, fault};
  using PluginFunction = const CudaPlugin* (*)();
  const auto plugin = reinterpret_cast<PluginFunction>(::dlsym(handle, kCudaPluginSymbol));
  if (plugin == nullptr) return {nullptr, concat("found ", library.string(), ", which is another library")};
  if (plugin()->version != kCudaPluginVersion) {
    return {nullptr, concat("found ", library.string(), " of version ", plugin()->version,
                            ", and this program needs ", kCudaPluginVersion)};
  }
  return {plugin(), {}};
}

OpenedCuda open_cuda() {
  static const OpenedCuda opened = [] {
    const fs::path library = beside_this_library();
    if (!fs::exists(library)) return OpenedCuda{nullptr, concat("found no ", library.string())};
    if (!driver_is_there()) return OpenedCuda();
    if (const Loaded cuda = load_library(torch_cuda()); cuda.handle == nullptr)
      return OpenedCuda{nullptr, cuda.fault};
    return open_cuda(library);
  }();
  return opened;
}

std::string nccl_version_text(int number) {
  const int thousands = number < 10000 ? 1000 : 10000;  // two digits of the minor number since 2.9
  return concat(number / thousands, ".", number % thousands / 100, ".", number % 100);
}

std::string nccl_version() {
  // Only what is there already: looking must not load it.
  void* handle = ::dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return "none";
  const auto get = reinterpret_cast<int (*)(int*)>(::dlsym(handle, "ncclGetVersion"));
  int number = 0;
  const bool told = get != nullptr && get(&number) == 0;
  ::dlclose(handle);
  return told ? nccl_version_text(number) : "unknown";
}

}  // namespace tessera::device
