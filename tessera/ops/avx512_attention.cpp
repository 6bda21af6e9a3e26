#include "tessera/ops/avx512_attention.h"

#include "tessera/ops/avx512_attention_heads.h"

namespace tessera::ops::avx512 {

void attention(const Heads<uint16_t>& q, const Heads<uint16_t>& k, const Heads<uint16_t>& v,
               const AttentionShape& shape, int64_t begin, int64_t end, const Heads<uint16_t>& out,
               float* stats, uint16_t* scratch) {
  attend<uint16_t>(q, k, v, shape, begin, end, out, stats, scratch);
}

void attention_backward(const Heads<uint16_t>& q, const Heads<uint16_t>& k, const Heads<uint16_t>& v,
                        const AttentionShape& shape, int64_t begin, int64_t end,
                        const Heads<uint16_t>& gradient, const float* stats, const Heads<uint16_t>& dq,
                        const Heads<uint16_t>& dk, const Heads<uint16_t>& dv, uint16_t* scratch) {
  attend_backward<uint16_t>(q, k, v, shape, begin, end, gradient, stats, dq, dk, dv, scratch);
}

}  // namespace tessera::ops::avx512
