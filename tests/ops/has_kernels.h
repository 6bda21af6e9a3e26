// SPDX-License-Identifier: Apache-2.0
// What tests ask of a result depends on who computed it: LibTorch's operations promise less than kernels of
// our own.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/ops/cpu/cpu.h"

namespace tessera::ops {

/// This CPU has kernels for tensors of bf16 or fp32.
inline bool has_kernels(at::ScalarType dtype) {
  return dtype == at::kFloat ? cpu_has_fp32_kernels() : cpu_has_bf16_kernels();
}

}  // namespace tessera::ops
