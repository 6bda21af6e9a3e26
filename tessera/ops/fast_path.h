// SPDX-License-Identifier: Apache-2.0
// What the ops with kernels for CPUs share: when a kernel applies, and raw access for it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "tessera/ops/cpu/cpu.h"
#include "tessera/ops/cpu/vector_sets.h"

namespace tessera::ops {

/// The kernels for CPUs are for this tensor. All others are computed with LibTorch's operations, where they
/// are.
inline bool is_for_kernels(const at::Tensor& t) { return t.is_cpu() && kernels_are_on(); }

/// The same, for tensors of this dtype with something in them.
inline bool is_for_kernels(const at::Tensor& t, at::ScalarType dtype) {
  return is_for_kernels(t) && t.scalar_type() == dtype && t.numel() > 0;
}

/// The bf16 kernels can take this tensor.
inline bool fits_bf16(const at::Tensor& t) {
  return is_for_kernels(t, at::kBFloat16) && cpu_has_bf16_kernels();
}
/// The fp32 kernels can.
inline bool fits_fp32(const at::Tensor& t) { return is_for_kernels(t, at::kFloat) && cpu_has_fp32_kernels(); }

/// body(set) with the widest vectors, of cpu/vector_sets.h, that this CPU has for kernels of these elements
/// (those beside tiles are AVX-512's).
template <typename Element, typename Body>
decltype(auto) with_vectors(const Body& body) {
  const bool beside_tiles = sizeof(Element) == 2 && cpu_has_amx();
  return beside_tiles || cpu_has_avx512() ? body(vectors::Avx512()) : body(vectors::Avx2());
}

/// A tensor's numbers as kernels take them. Element: uint16_t, the bits of bf16, or float.
template <typename Element>
const Element* data_of(const at::Tensor& t) {
  return static_cast<const Element*>(t.const_data_ptr());
}
template <typename Element>
Element* mutable_data_of(const at::Tensor& t) {
  return static_cast<Element*>(t.mutable_data_ptr());
}

/// Memory for these, of unknown content.
template <typename Element>
at::Tensor scratch(int64_t elements) {
  return at::empty({elements}, at::TensorOptions().dtype(sizeof(Element) == 4 ? at::kFloat : at::kBFloat16));
}

/// [..., columns] as [rows, columns].
inline at::Tensor as_rows(const at::Tensor& t) { return t.reshape({-1, t.size(-1)}); }

/// Images [samples, channels, height, width] with the channels of a place as a row: [samples, height, width,
/// channels].
inline at::Tensor rows_of(const at::Tensor& images) { return images.permute({0, 2, 3, 1}).contiguous(); }

}  // namespace tessera::ops
