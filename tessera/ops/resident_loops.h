// Tile products of operands that stay in registers: the peak of a CPU with AMX. Private to peak_rate.cpp. (Of
// others: Gemm::resident_products in avx512_gemm.h.)
#pragma once

namespace tessera::ops {
namespace amx {
/// Returns the floating-point operations it made: `turns` times four tile products. Requires cpu_has_amx().
double resident_products(long turns);
}  // namespace amx
}  // namespace tessera::ops
