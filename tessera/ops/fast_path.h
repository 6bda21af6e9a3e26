// What the ops with bf16 kernels for CPUs share: when a kernel applies, and raw access for it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "tessera/ops/cpu.h"

namespace tessera::ops {

/// The kernels for CPUs are for this tensor. All others are computed with LibTorch's operations, where they
/// are.
inline bool is_for_kernels(const at::Tensor& t) { return t.is_cpu() && kernels_are_on(); }

/// The bf16 kernels can take this tensor.
inline bool fits_kernels(const at::Tensor& t) {
  return is_for_kernels(t) && t.scalar_type() == at::kBFloat16 && t.numel() > 0 && cpu_has_amx();
}

inline const uint16_t* bits(const at::Tensor& t) { return static_cast<const uint16_t*>(t.const_data_ptr()); }
inline uint16_t* mutable_bits(const at::Tensor& t) { return static_cast<uint16_t*>(t.mutable_data_ptr()); }

inline at::Tensor bf16_scratch(int64_t elements) {
  return at::empty({elements}, at::TensorOptions().dtype(at::kBFloat16));
}

}  // namespace tessera::ops
