#include "tessera/ops/avx512_attention.h"
#include "tessera/ops/avx512_attention_heads.h"

namespace tessera::ops::avx512 {

// In words, for fp32: bf16 takes less.
int64_t attention_scratch(const AttentionShape& s) {
  const int64_t columns = lanes(s.head_width);
  return 2 * (s.head_width * lanes(s.tokens) + s.tokens * columns + 2 * kBlock * columns +
              2 * kBlock * kLine + 16 * 6);
}

int64_t attention_backward_scratch(const AttentionShape& s) {
  const int64_t columns = lanes(s.head_width);
  return 2 * (2 * s.head_width * lanes(s.tokens) + 3 * s.tokens * columns + 5 * kBackwardBlock * columns +
              6 * kBackwardBlock * kLine + 16 * 16);
}

void attention(const Heads<float>& q, const Heads<float>& k, const Heads<float>& v,
               const AttentionShape& shape, int64_t begin, int64_t end, const Heads<float>& out, float* stats,
               uint16_t* scratch) {
  attend(q, k, v, shape, begin, end, out, stats, scratch);
}

void attention_backward(const Heads<float>& q, const Heads<float>& k, const Heads<float>& v,
                        const AttentionShape& shape, int64_t begin, int64_t end, const Heads<float>& gradient,
                        const float* stats, const Heads<float>& dq, const Heads<float>& dk,
                        const Heads<float>& dv, uint16_t* scratch) {
  attend_backward(q, k, v, shape, begin, end, gradient, stats, dq, dk, dv, scratch);
}

}  // namespace tessera::ops::avx512
