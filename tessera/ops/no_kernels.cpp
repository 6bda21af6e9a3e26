// Where the compiler's target has no AVX-512: cpu.h says so of every CPU there, and nothing of this runs.
#include "tessera/base/error.h"
#include "tessera/ops/amx_attention.h"
#include "tessera/ops/amx_gemm.h"
#include "tessera/ops/avx512_attention.h"
#include "tessera/ops/avx512_batch_norm.h"
#include "tessera/ops/avx512_gemm.h"
#include "tessera/ops/avx512_keyless.h"
#include "tessera/ops/avx512_norm.h"

namespace tessera::ops {
namespace {
[[noreturn]] void absent() { throw InternalError("[ops] this build has no kernels for this CPU"); }
}  // namespace

namespace amx {
void Gemm::multiply_cut(const uint16_t*, int64_t, const Cut&, const uint16_t*, int64_t,
                        const Epilogue<uint16_t>&, float*, const avx512::Turns&) {
  absent();
}
void Gemm::pack_left(const uint16_t*, int64_t, int64_t, int64_t, int64_t, int64_t, uint16_t*, float*) {
  absent();
}
void Gemm::multiply_packed(const uint16_t*, int64_t, int64_t, const uint16_t*, int64_t,
                           const Epilogue<uint16_t>&, const Piece&, const avx512::Turns&) {
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

namespace avx512 {
void layer_norm(const uint16_t*, int64_t, int64_t, const uint16_t*, const uint16_t*, float, uint16_t*,
                float*) {
  absent();
}
void layer_norm(const float*, int64_t, int64_t, const float*, const float*, float, float*, float*) {
  absent();
}
void layer_norm_backward(const uint16_t*, const uint16_t*, const uint16_t*, int64_t, int64_t, const uint16_t*,
                         const float*, uint16_t*, float*, float*) {
  absent();
}
void layer_norm_backward(const float*, const float*, const float*, int64_t, int64_t, const float*,
                         const float*, float*, float*, float*) {
  absent();
}
template <typename T>
void BatchNormRows<T>::moments(const T*, int64_t, int64_t, int64_t, float*) {
  absent();
}
template <typename T>
void BatchNormRows<T>::forward(const BatchNormForward<T>&, int64_t, int64_t, int64_t) {
  absent();
}
template <typename T>
void BatchNormRows<T>::backward_sums(const BatchNormBackward<T>&, int64_t, int64_t, int64_t, float*) {
  absent();
}
template <typename T>
void BatchNormRows<T>::backward(const BatchNormBackward<T>&, int64_t, int64_t, int64_t) {
  absent();
}
template struct BatchNormRows<uint16_t>;
template struct BatchNormRows<float>;
template <typename T>
void KeylessImage<T>::forward(const T*, const T*, const KeylessShape&, float*, T*, float*) {
  absent();
}
template <typename T>
void KeylessImage<T>::backward(const T*, const T*, const T*, const float*, const KeylessShape&, T*, T*,
                               float*) {
  absent();
}
template struct KeylessImage<uint16_t>;
template struct KeylessImage<float>;
int64_t attention_scratch(const AttentionShape&) { absent(); }
int64_t attention_backward_scratch(const AttentionShape&) { absent(); }
void attention(const Heads<uint16_t>&, const Heads<uint16_t>&, const Heads<uint16_t>&, const AttentionShape&,
               int64_t, int64_t, const Heads<uint16_t>&, float*, uint16_t*) {
  absent();
}
void widened_attention(const Heads<uint16_t>&, const Heads<uint16_t>&, const Heads<uint16_t>&,
                       const AttentionShape&, int64_t, int64_t, const Heads<uint16_t>&, float*, uint16_t*) {
  absent();
}
void attention_backward(const Heads<uint16_t>&, const Heads<uint16_t>&, const Heads<uint16_t>&,
                        const AttentionShape&, int64_t, int64_t, const Heads<uint16_t>&, const float*,
                        const Heads<uint16_t>&, const Heads<uint16_t>&, const Heads<uint16_t>&, uint16_t*) {
  absent();
}
void widened_attention_backward(const Heads<uint16_t>&, const Heads<uint16_t>&, const Heads<uint16_t>&,
                                const AttentionShape&, int64_t, int64_t, const Heads<uint16_t>&, const float*,
                                const Heads<uint16_t>&, const Heads<uint16_t>&, const Heads<uint16_t>&,
                                uint16_t*) {
  absent();
}
void attention(const Heads<float>&, const Heads<float>&, const Heads<float>&, const AttentionShape&, int64_t,
               int64_t, const Heads<float>&, float*, uint16_t*) {
  absent();
}
void attention_backward(const Heads<float>&, const Heads<float>&, const Heads<float>&, const AttentionShape&,
                        int64_t, int64_t, const Heads<float>&, const float*, const Heads<float>&,
                        const Heads<float>&, const Heads<float>&, uint16_t*) {
  absent();
}
template <typename T, typename Packed>
void Gemm<T, Packed>::pack_transposed(const T*, int64_t, int64_t, int64_t, int64_t, Packed*) {
  absent();
}
template <typename T, typename Packed>
void Gemm<T, Packed>::pack(const T*, int64_t, int64_t, int64_t, int64_t, bool, Packed*) {
  absent();
}
template <typename T, typename Packed>
void Gemm<T, Packed>::multiply(const T*, int64_t, int64_t, const Packed*, int64_t, const Epilogue<T>&,
                               const Turns&) {
  absent();
}
template <typename T, typename Packed>
void Gemm<T, Packed>::pack_left(const T*, int64_t, int64_t, int64_t, int64_t, int64_t, Packed*, float*) {
  absent();
}
template <typename T, typename Packed>
void Gemm<T, Packed>::multiply_packed(const Packed*, int64_t, int64_t, const Packed*, int64_t,
                                      const Epilogue<T>&, const Piece&, const Turns&) {
  absent();
}
template <typename T, typename Packed>
void Gemm<T, Packed>::gelu_backward(const T*, const T*, T*, int64_t) {
  absent();
}
template <typename T, typename Packed>
double Gemm<T, Packed>::resident_products(long) {
  absent();
}
template struct Gemm<uint16_t>;
template struct Gemm<uint16_t, float>;
template struct Gemm<float>;
}  // namespace avx512

}  // namespace tessera::ops
