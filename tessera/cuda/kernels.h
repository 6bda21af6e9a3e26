// SPDX-License-Identifier: Apache-2.0
// Fused kernels for GPUs: what device/kernel_table.h asks for, each in the file of its name.
// Asynchronous, on the stream that they are given. No LibTorch here, so that nvcc compiles them fast.
#pragma once

#include "tessera/device/kernel_table.h"

namespace tessera::cuda {

int64_t norm_parts(int64_t rows, int64_t width);
int64_t sum_parts(int64_t rows, int64_t width);
void norm_forward(const device::NormForward& pass, void* stream);
void norm_backward(const device::NormBackward& pass, void* stream);
void adamw(const device::AdamwPass& pass, void* stream);
void copy_runs(const device::CopyPass& pass, void* stream);
void cross_entropy(const device::CrossEntropyForward& pass, void* stream);
void cross_entropy_backward(const device::CrossEntropyBackward& pass, void* stream);
void gelu(const device::Gelu& pass, void* stream);
void gelu_backward(const device::GeluBackward& pass, void* stream);
void gelu_backward_sums(const device::GeluBackwardSums& pass, void* stream);
void concat_sums(const device::ConcatSums& pass, void* stream);
void uint8_images(const device::Uint8Images& pass, void* stream);
void fp8_rows(const device::Fp8Pass& pass, void* stream);

/// All of them, on the streams that `stream` gives.
constexpr device::DeviceKernels kernels_on(void* (*stream)(int device)) {
  return {.stream = stream,
          .norm_parts = norm_parts,
          .norm_forward = norm_forward,
          .norm_backward = norm_backward,
          .adamw = adamw,
          .copy_runs = copy_runs,
          .cross_entropy = cross_entropy,
          .cross_entropy_backward = cross_entropy_backward,
          .gelu = gelu,
          .gelu_backward = gelu_backward,
          .sum_parts = sum_parts,
          .gelu_backward_sums = gelu_backward_sums,
          .concat_sums = concat_sums,
          .uint8_images = uint8_images,
          .fp8_rows = fp8_rows};
}

}  // namespace tessera::cuda
