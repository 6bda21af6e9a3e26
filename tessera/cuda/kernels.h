// Fused kernels for GPUs: what ops/kernel_table.h asks for, each in the file of its name. Asynchronous, on
// the stream that they are given. No LibTorch here, so that nvcc compiles them fast.
#pragma once

#include "tessera/ops/kernel_table.h"

namespace tessera::cuda {

int64_t norm_parts(int64_t rows, int64_t width);
void norm_forward(const ops::NormForward& pass, void* stream);
void norm_backward(const ops::NormBackward& pass, void* stream);
void adamw(const ops::AdamwPass& pass, void* stream);
void cross_entropy(const ops::CrossEntropyForward& pass, void* stream);
void cross_entropy_backward(const ops::CrossEntropyBackward& pass, void* stream);
void pictures(const ops::Pictures& pass, void* stream);
void fp8_rows(const ops::Fp8Pass& pass, void* stream);

}  // namespace tessera::cuda
