// Loops of products of operands that stay in registers: the CPU's peak. Private to peak_rate.cpp.
#pragma once

namespace tessera::ops {
namespace amx {
/// Returns the floating-point operations it made: `turns` times four tile products. Requires cpu_has_amx().
double resident_products(long turns);
}  // namespace amx
namespace avx512 {
/// The same with fp32 multiply-adds of 16 lanes. Requires AVX-512F.
double resident_products(long turns);
}  // namespace avx512
}  // namespace tessera::ops
