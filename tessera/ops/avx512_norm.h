// Layer normalisation of bf16 rows with fp32 statistics. Requires AVX-512 with bf16 (cpu_has_amx() implies
// it).
#pragma once

#include <cstdint>

namespace tessera::ops::avx512 {

/// y = (x - mean) * rstd * weight + bias for each row of x [rows, width]. stats [rows, 2]: mean and rstd.
void layer_norm(const uint16_t* x, int64_t rows, int64_t width, const uint16_t* weight, const uint16_t* bias,
                float epsilon, uint16_t* y, float* stats);

/// dx [rows, width]; adds to weight_sums [width] and bias_sums [width].
void layer_norm_backward(const uint16_t* gradient, const uint16_t* x, int64_t rows, int64_t width,
                         const uint16_t* weight, const float* stats, uint16_t* dx, float* weight_sums,
                         float* bias_sums);

}  // namespace tessera::ops::avx512
