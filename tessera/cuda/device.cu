// SPDX-License-Identifier: Apache-2.0
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
  user_error({.where = where,
              .problem = concat("GPU ", index, " does not answer: ", cudaGetErrorString(status)),
              .hint = "nvidia-smi shows the state of the GPU"});
}

__global__ void write_squares(uint32_t* out) { out[threadIdx.x] = threadIdx.x * threadIdx.x; }

/// Is it that this build has no code for the GPU, and no other fault?
bool is_missing_code(cudaError_t status) {
  return status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction ||
         status == cudaErrorUnsupportedPtxVersion;
}

/// Since CUDA 12 this makes a context, some hundred MiB of the GPU's memory, for whatever device it names.
/// So nothing goes back to the device of before, which for a new process is GPU 0, whoever computes on it.
void use(int index, const char* where) { check(cudaSetDevice(index), where, index); }

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
  use(index, where);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), where, index);
  Device found{.name = properties.name, .major = properties.major, .minor = properties.minor};
  check(cudaMemGetInfo(&found.free_bytes, &found.total_bytes), where, index);
  return found;
}

void check_device(int index) {
  const char* where = "cuda.check_device";
  use(index, where);
  cudaFuncAttributes attributes{};
  const cudaError_t loaded = cudaFuncGetAttributes(&attributes, write_squares);
  if (is_missing_code(loaded)) {
    cudaGetLastError();
    const Device found = device(index);
    user_error({.where = where,
                .problem = concat("this build has no code for compute capability ", found.major, ".",
                                  found.minor, " (GPU ", index, ", ", found.name, ")"),
                .hint = concat("build again with -DCMAKE_CUDA_ARCHITECTURES=", found.major, found.minor)});
  }
  check(loaded, where, index);
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
      user_error({.where = where,
                  .problem = concat("GPU ", index, " wrote ", squares[i]),
                  .expected = concat(i * i),
                  .hint = "the GPU or its driver is faulty"});
    }
  }
}

}  // namespace tessera::cuda
