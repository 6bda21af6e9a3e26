// SPDX-License-Identifier: Apache-2.0
// The machine's own speed, measured: what percentages in log lines refer to.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace tessera::profile {

/// Factors of the product that is measured: rows [m, k] and weight [n, k].
struct MatmulOperands {
  at::Tensor rows, weight;
};
/// Normally distributed values, the same in every call; LibTorch's default generator is left alone. Equal
/// values would not do: a GPU, or a CPU's tile unit, uses less power for zeros and ones, keeps a higher clock
/// and shows a rate that no training reaches (an H200 in bf16: 894 TFLOP/s of zeros, 788 of random values).
MatmulOperands matmul_operands(at::ScalarType dtype, at::Device device);

/// TFLOP/s of a large matrix product of random values in this dtype with this process's threads, or on its
/// GPU; takes about 0.1 s.
double measure_matmul_tflops(at::ScalarType dtype, at::Device device = at::kCPU);

}  // namespace tessera::profile
