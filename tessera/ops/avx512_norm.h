// Layer normalisation of rows with fp32 statistics. Of bf16 rows it requires cpu_has_avx512_bf16() or
// cpu_has_amx(), of fp32 rows cpu_has_avx512(). A row's numbers do not depend on the others.
#pragma once

#include <cstdint>

namespace tessera::ops::avx512 {

/// y = (x - mean) * rstd * weight + bias for each row of x [rows, width]. stats [rows, 2]: mean and rstd.
void layer_norm(const uint16_t* x, int64_t rows, int64_t width, const uint16_t* weight, const uint16_t* bias,
                float epsilon, uint16_t* y, float* stats);
void layer_norm(const float* x, int64_t rows, int64_t width, const float* weight, const float* bias,
                float epsilon, float* y, float* stats);

/// dx [rows, width], plus `more` [rows, width], what x's gradient has besides (null: 0); adds to weight_sums
/// [width] and bias_sums [width], row after row.
void layer_norm_backward(const uint16_t* gradient, const uint16_t* more, const uint16_t* x, int64_t rows,
                         int64_t width, const uint16_t* weight, const float* stats, uint16_t* dx,
                         float* weight_sums, float* bias_sums);
void layer_norm_backward(const float* gradient, const float* more, const float* x, int64_t rows,
                         int64_t width, const float* weight, const float* stats, float* dx,
                         float* weight_sums, float* bias_sums);

}  // namespace tessera::ops::avx512
