// SPDX-License-Identifier: Apache-2.0
// Products of bf16 matrices by cuBLASLt, finished while they are in registers (device/products.h).
#pragma once

namespace tessera::device {
struct DeviceProducts;
}  // namespace tessera::device

namespace tessera::cuda {

/// For tensors of any GPU; work is queued on the current stream. The first product of its kind (sizes,
/// alignment, epilogue) measures the algorithms that cuBLASLt proposes and LibTorch's operations, for some
/// milliseconds, and waits for the GPU; later ones use the fastest. While a CUDA graph is being captured, and
/// with TESSERA_CUBLAS_TUNING=0 in the environment, nothing is measured. A product that cuBLASLt has no
/// algorithm for is computed by LibTorch.
extern const device::DeviceProducts kProducts;

}  // namespace tessera::cuda
