#include "tessera/ops/avx512_norm.h"
#include "tessera/ops/avx512_norm_rows.h"

namespace tessera::ops::avx512 {

void layer_norm(const float* x, int64_t rows, int64_t width, const float* weight, const float* bias,
                float epsilon, float* y, float* stats) {
  norm_rows(x, rows, width, weight, bias, epsilon, y, stats);
}

void layer_norm_backward(const float* gradient, const float* more, const float* x, int64_t rows,
                         int64_t width, const float* weight, const float* stats, float* dx,
                         float* weight_sums, float* bias_sums) {
  norm_rows_backward(gradient, more, x, rows, width, weight, stats, dx, weight_sums, bias_sums);
}

}  // namespace tessera::ops::avx512
