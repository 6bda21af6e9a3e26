#include "tessera/ops/avx512_norm.h"

#include "tessera/ops/avx512_math.h"

namespace tessera::ops::avx512 {

void layer_norm(const uint16_t* x, int64_t rows, int64_t width, const uint16_t* weight, const uint16_t* bias,
                float epsilon, uint16_t* y, float* stats) {
  const float share = 1.0F / static_cast<float>(width);
  for (int64_t row = 0; row < rows; ++row, x += width, y += width, stats += 2) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t j = 0; j < width; j += 16) {
      sum = _mm512_add_ps(sum, load_bf16(x + j, first_lanes(width - j)));
    }
    const __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(sum) * share);
    __m512 squares = _mm512_setzero_ps();
    for (int64_t j = 0; j < width; j += 16) {
      const __mmask16 mask = first_lanes(width - j);
      const __m512 centred = _mm512_maskz_sub_ps(mask, load_bf16(x + j, mask), mean);
      squares = _mm512_fmadd_ps(centred, centred, squares);
    }
    stats[0] = _mm512_cvtss_f32(mean);
    stats[1] = 1.0F / __builtin_sqrtf(_mm512_reduce_add_ps(squares) * share + epsilon);
    const __m512 rstd = _mm512_set1_ps(stats[1]);
    for (int64_t j = 0; j < width; j += 16) {
      const __mmask16 mask = first_lanes(width - j);
      const __m512 normed = _mm512_mul_ps(_mm512_sub_ps(load_bf16(x + j, mask), mean), rstd);
      store_bf16(y + j, mask,
                 _mm512_fmadd_ps(normed, load_bf16(weight + j, mask), load_bf16(bias + j, mask)));
    }
  }
}

void layer_norm_backward(const uint16_t* gradient, const uint16_t* x, int64_t rows, int64_t width,
                         const uint16_t* weight, const float* stats, uint16_t* dx, float* weight_sums,
                         float* bias_sums) {
  const __m512 share = _mm512_set1_ps(1.0F / static_cast<float>(width));
  for (int64_t row = 0; row < rows; ++row, gradient += width, x += width, dx += width, stats += 2) {
    const __m512 mean = _mm512_set1_ps(stats[0]), rstd = _mm512_set1_ps(stats[1]);
    __m512 sum = _mm512_setzero_ps(), product_sum = _mm512_setzero_ps();
    for (int64_t j = 0; j < width; j += 16) {
      const __mmask16 mask = first_lanes(width - j);
      const __m512 dy = load_bf16(gradient + j, mask);
      const __m512 normed = _mm512_mul_ps(_mm512_sub_ps(load_bf16(x + j, mask), mean), rstd);
      const __m512 inner = _mm512_mul_ps(dy, load_bf16(weight + j, mask));
      sum = _mm512_add_ps(sum, inner);
      product_sum = _mm512_fmadd_ps(inner, normed, product_sum);
      const __m512 old_weight = _mm512_maskz_loadu_ps(mask, weight_sums + j);
      _mm512_mask_storeu_ps(weight_sums + j, mask, _mm512_fmadd_ps(dy, normed, old_weight));
      _mm512_mask_storeu_ps(bias_sums + j, mask,
                            _mm512_add_ps(dy, _mm512_maskz_loadu_ps(mask, bias_sums + j)));
    }
    const __m512 mean_inner = _mm512_mul_ps(_mm512_set1_ps(_mm512_reduce_add_ps(sum)), share);
    const __m512 mean_product = _mm512_mul_ps(_mm512_set1_ps(_mm512_reduce_add_ps(product_sum)), share);
    for (int64_t j = 0; j < width; j += 16) {
      const __mmask16 mask = first_lanes(width - j);
      const __m512 normed = _mm512_mul_ps(_mm512_sub_ps(load_bf16(x + j, mask), mean), rstd);
      const __m512 inner = _mm512_mul_ps(load_bf16(gradient + j, mask), load_bf16(weight + j, mask));
      const __m512 centred =
          _mm512_sub_ps(_mm512_sub_ps(inner, mean_inner), _mm512_mul_ps(normed, mean_product));
      store_bf16(dx + j, mask, _mm512_mul_ps(centred, rstd));
    }
  }
}

}  // namespace tessera::ops::avx512
