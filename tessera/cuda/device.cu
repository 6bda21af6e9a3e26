#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "tessera/base/error.h"
#include "tessera/cuda/device.h"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 64;

void check(cudaError_t status, const char* where, int index) {
  if (status == cudaSuccess) {
    return;
  }
  cudaGetLastError();  // or the next call would report this one again
  user_error(where, "expected GPU ", index, " to answer: ", cudaGetErrorString(status),
             " (nvidia-smi shows the state of the GPU)");
}

__global__ void write_squares(uint32_t* out) { out[threadIdx.x] = threadIdx.x * threadIdx.x; }

/// The caller's current device comes back, whatever happens in between.
class DeviceScope {
 public:
  DeviceScope(int index, const char* where) {
    check(cudaGetDevice(&before_), where, index);
    check(cudaSetDevice(index), where, index);
  }
  ~DeviceScope() { cudaSetDevice(before_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
};

}  // namespace

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

Device device(int index) {
  const char* where = "cuda.device";
  const DeviceScope scope(index, where);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), where, index);
  Device found{.name = properties.name, .major = properties.major, .minor = properties.minor};
  check(cudaMemGetInfo(&found.free_bytes, &found.total_bytes), where, index);
  return found;
}

void check_device(int index) {
  const char* where = "cuda.check_device";
  const DeviceScope scope(index, where);
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, write_squares) != cudaSuccess) {
    cudaGetLastError();
    const Device found = device(index);
    user_error(where, "expected code for compute capability ", found.major, ".", found.minor, " (GPU ", index,
               ", ", found.name,
               "): this build has none (build again with -DCMAKE_CUDA_ARCHITECTURES=", found.major,
               found.minor, ")");
  }
  std::array<uint32_t, kThreads> squares{};
  uint32_t* memory = nullptr;
  check(cudaMalloc(reinterpret_cast<void**>(&memory), sizeof(squares)), where, index);
  write_squares<<<1, kThreads>>>(memory);
  const cudaError_t launched = cudaGetLastError();
  const cudaError_t copied = cudaMemcpy(squares.data(), memory, sizeof(squares), cudaMemcpyDeviceToHost);
  cudaFree(memory);
  check(launched, where, index);
  check(copied, where, index);
  for (uint32_t i = 0; i < kThreads; ++i) {
    if (squares[i] != i * i) {
      user_error(where, "expected GPU ", index, " to write ", i * i, ": read ", squares[i],
                 " (the GPU or its driver is faulty)");
    }
  }
}

}  // namespace tessera::cuda
