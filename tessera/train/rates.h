// The machine's own speed, measured: what percentages in log lines refer to.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::train {

/// TFLOP/s of a large matrix product in this dtype with this process's threads; takes about 0.1 s.
double measure_matmul_tflops(at::ScalarType dtype);

}  // namespace tessera::train
