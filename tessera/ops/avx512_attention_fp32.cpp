#include "tessera/ops/avx512_attention.h"
#include "tessera/ops/avx512_attention_heads.h"

namespace tessera::ops::avx512 {

namespace {

// In units of two bytes, for the type of words that takes more.
template <template <typename> typename OfWord>
int64_t most_scratch(const AttentionShape& shape) {
  Scratch wide{nullptr}, narrow{nullptr};
  OfWord<float>(shape, wide);
  OfWord<uint16_t>(shape, narrow);
  return 2 * (wide.used > narrow.used ? wide.used : narrow.used);
}

}  // namespace

int64_t attention_scratch(const AttentionShape& s) { return most_scratch<Memory>(s); }
int64_t attention_backward_scratch(const AttentionShape& s) { return most_scratch<BackwardMemory>(s); }

void attention(const Heads<float>& q, const Heads<float>& k, const Heads<float>& v,
               const AttentionShape& shape, int64_t begin, int64_t end, const Heads<float>& out, float* stats,
               uint16_t* scratch) {
  attend<float>(q, k, v, shape, begin, end, out, stats, scratch);
}

void attention_backward(const Heads<float>& q, const Heads<float>& k, const Heads<float>& v,
                        const AttentionShape& shape, int64_t begin, int64_t end, const Heads<float>& gradient,
                        const float* stats, const Heads<float>& dq, const Heads<float>& dk,
                        const Heads<float>& dv, uint16_t* scratch) {
  attend_backward<float>(q, k, v, shape, begin, end, gradient, stats, dq, dk, dv, scratch);
}

}  // namespace tessera::ops::avx512
