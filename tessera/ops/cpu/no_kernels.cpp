// SPDX-License-Identifier: Apache-2.0
// Where the compiler's target is no x86.
#include "tessera/ops/cpu/no_kernels.h"

#include "tessera/ops/cpu/amx_attention.h"
#include "tessera/ops/cpu/amx_gemm.h"

namespace tessera::ops {

namespace amx {
void Gemm::multiply_cut(const uint16_t*, int64_t, const Cut&, const uint16_t*, int64_t,
                        const Epilogue<uint16_t>&, float*, const vectors::Turns&) {
  absent();
}
void Gemm::pack_left(const uint16_t*, int64_t, int64_t, int64_t, int64_t, int64_t, uint16_t*, float*) {
  absent();
}
void Gemm::multiply_packed(const uint16_t*, int64_t, int64_t, const uint16_t*, int64_t,
                           const Epilogue<uint16_t>&, const PartialSums&, const vectors::Turns&) {
  absent();
}
double Gemm::resident_products(long) { absent(); }
int64_t attention_scratch(const AttentionShape&) { absent(); }
int64_t attention_backward_scratch(const AttentionShape&) { absent(); }
void attention(const Heads&, const Heads&, const Heads&, const AttentionShape&, int64_t, int64_t,
               const Heads&, float*, uint16_t*) {
  absent();
}
void attention_backward(const Heads&, const Heads&, const Heads&, const AttentionShape&, int64_t, int64_t,
                        const Heads&, const float*, const Heads&, const Heads&, const Heads&, uint16_t*) {
  absent();
}
}  // namespace amx

namespace vectors {
TESSERA_NO_VECTOR_KERNELS(Avx512);
TESSERA_NO_VECTOR_KERNELS(Avx2);
template struct AttentionKernels<Avx512, uint16_t, uint16_t>;
template struct Gemm<Avx512, uint16_t>;
}  // namespace vectors

}  // namespace tessera::ops
