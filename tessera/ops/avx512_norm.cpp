#include "tessera/ops/avx512_norm.h"

#include "tessera/ops/avx512_norm_rows.h"

namespace tessera::ops::avx512 {

void layer_norm(const uint16_t* x, int64_t rows, int64_t width, const uint16_t* weight, const uint16_t* bias,
                float epsilon, uint16_t* y, float* stats) {
  norm_rows(x, rows, width, weight, bias, epsilon, y, stats);
}

void layer_norm_backward(const uint16_t* gradient, const uint16_t* more, const uint16_t* x, int64_t rows,
                         int64_t width, const uint16_t* weight, const float* stats, uint16_t* dx,
                         float* weight_sums, float* bias_sums) {
  norm_rows_backward(gradient, more, x, rows, width, weight, stats, dx, weight_sums, bias_sums);
}

}  // namespace tessera::ops::avx512
