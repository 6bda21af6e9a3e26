// SPDX-License-Identifier: Apache-2.0
// Stands in for kernels that are not compiled, for a CPU of which cpu.h does not say that it has them:
// nothing of this runs.
#pragma once

#include "tessera/base/error.h"
#include "tessera/ops/cpu/vector_attention.h"
#include "tessera/ops/cpu/vector_batch_norm.h"
#include "tessera/ops/cpu/vector_few_query.h"
#include "tessera/ops/cpu/vector_gemm.h"
#include "tessera/ops/cpu/vector_norm.h"

namespace tessera::ops {
[[noreturn]] inline void absent() { throw InternalError("[ops] this build has no kernels for this CPU"); }

namespace vectors {
template <typename Set, typename T>
void LayerNormRows<Set, T>::forward(const T*, int64_t, int64_t, const T*, const T*, float, T*, float*) {
  absent();
}
template <typename Set, typename T>
void LayerNormRows<Set, T>::backward(const T*, const T*, const T*, int64_t, int64_t, const T*, const float*,
                                     T*, float*, float*) {
  absent();
}
template <typename Set, typename T>
void BatchNormRows<Set, T>::moments(const T*, int64_t, int64_t, int64_t, float*) {
  absent();
}
template <typename Set, typename T>
void BatchNormRows<Set, T>::forward(const BatchNormForward<T>&, int64_t, int64_t, int64_t) {
  absent();
}
template <typename Set, typename T>
void BatchNormRows<Set, T>::backward_sums(const BatchNormBackward<T>&, int64_t, int64_t, int64_t, float*) {
  absent();
}
template <typename Set, typename T>
void BatchNormRows<Set, T>::backward(const BatchNormBackward<T>&, int64_t, int64_t, int64_t) {
  absent();
}
template <typename Set, typename T>
void FewQueryImage<Set, T>::forward(const T*, const T*, const FewQueryShape&, float*, T*, float*) {
  absent();
}
template <typename Set, typename T>
void FewQueryImage<Set, T>::backward(const T*, const T*, const T*, const float*, const FewQueryShape&, T*, T*,
                                     float*) {
  absent();
}
template <typename Set, typename Element, typename Word>
int64_t AttentionKernels<Set, Element, Word>::scratch(const AttentionShape&) {
  absent();
}
template <typename Set, typename Element, typename Word>
int64_t AttentionKernels<Set, Element, Word>::backward_scratch(const AttentionShape&) {
  absent();
}
template <typename Set, typename Element, typename Word>
void AttentionKernels<Set, Element, Word>::forward(const Heads<Element>&, const Heads<Element>&,
                                                   const Heads<Element>&, const AttentionShape&, int64_t,
                                                   int64_t, const Heads<Element>&, float*, uint16_t*) {
  absent();
}
template <typename Set, typename Element, typename Word>
void AttentionKernels<Set, Element, Word>::backward(const Heads<Element>&, const Heads<Element>&,
                                                    const Heads<Element>&, const AttentionShape&, int64_t,
                                                    int64_t, const Heads<Element>&, const float*,
                                                    const Heads<Element>&, const Heads<Element>&,
                                                    const Heads<Element>&, uint16_t*) {
  absent();
}
template <typename Set, typename T, typename Packed>
void Gemm<Set, T, Packed>::pack_transposed(const T*, int64_t, int64_t, int64_t, int64_t, Packed*) {
  absent();
}
template <typename Set, typename T, typename Packed>
void Gemm<Set, T, Packed>::pack(const T*, int64_t, int64_t, int64_t, int64_t, bool, Packed*) {
  absent();
}
template <typename Set, typename T, typename Packed>
void Gemm<Set, T, Packed>::multiply(const T*, int64_t, int64_t, const Packed*, int64_t, const Epilogue<T>&,
                                    const Turns&) {
  absent();
}
template <typename Set, typename T, typename Packed>
void Gemm<Set, T, Packed>::pack_left(const T*, int64_t, int64_t, int64_t, int64_t, int64_t, Packed*, float*) {
  absent();
}
template <typename Set, typename T, typename Packed>
void Gemm<Set, T, Packed>::multiply_packed(const Packed*, int64_t, int64_t, const Packed*, int64_t,
                                           const Epilogue<T>&, const PartialSums&, const Turns&) {
  absent();
}
template <typename Set, typename T, typename Packed>
void Gemm<Set, T, Packed>::gelu_backward(const T*, const T*, T*, int64_t) {
  absent();
}
template <typename Set, typename T, typename Packed>
double Gemm<Set, T, Packed>::resident_products(long) {
  absent();
}

}  // namespace vectors

}  // namespace tessera::ops

/// Instantiates, in namespace vectors, all that vector_*.cpp do.
#define TESSERA_NO_VECTOR_KERNELS(Set)                    \
  template struct LayerNormRows<Set, float>;              \
  template struct LayerNormRows<Set, uint16_t>;           \
  template struct BatchNormRows<Set, float>;              \
  template struct BatchNormRows<Set, uint16_t>;           \
  template struct FewQueryImage<Set, float>;              \
  template struct FewQueryImage<Set, uint16_t>;           \
  template struct AttentionKernels<Set, float, float>;    \
  template struct AttentionKernels<Set, uint16_t, float>; \
  template struct Gemm<Set, float>;                       \
  template struct Gemm<Set, uint16_t, float>
