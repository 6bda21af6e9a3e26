// SPDX-License-Identifier: Apache-2.0
// The machine's own speed, measured: what percentages in log lines refer to.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace tessera::train {

/// TFLOP/s of a large matrix product in this dtype with this process's threads, or on its GPU; takes about
/// 0.1 s.
double measure_matmul_tflops(at::ScalarType dtype, at::Device device = at::kCPU);

}  // namespace tessera::train
