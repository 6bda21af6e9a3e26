// SPDX-License-Identifier: Apache-2.0
// Products of bf16 matrices by cuBLASLt, finished while they are in registers (ops/device_linear.h).
#pragma once

namespace tessera::ops {
struct DeviceProducts;
}  // namespace tessera::ops

namespace tessera::cuda {

/// For tensors of any GPU; work is queued on the current stream. A product that cuBLASLt has no algorithm for
/// is LibTorch's.
extern const ops::DeviceProducts kProducts;

}  // namespace tessera::cuda
