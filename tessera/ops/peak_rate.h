// What the arithmetic of this CPU could do at most, measured. Safe from any thread.
#pragma once

namespace tessera::ops {

/// Floating-point operations a second of one thread whose operands never leave the registers, measured for
/// about `seconds`: bf16 products in AMX tiles (bf16), or AVX-512 multiply-adds (fp32). 0 where the CPU has
/// none.
double peak_rate(bool bf16, double seconds);

}  // namespace tessera::ops
