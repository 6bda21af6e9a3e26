// SPDX-License-Identifier: Apache-2.0
// What the arithmetic of this CPU could do at most, measured. Safe from any thread.
#pragma once

namespace tessera::ops {

/// Floating-point operations a second of one thread whose operands never leave the registers, measured for
/// about `seconds`: of bf16 in AMX tiles, else in vector registers, or of fp32 there. 0 where the room has
/// no kernels for the CPU.
double peak_rate(bool bf16, double seconds);

}  // namespace tessera::ops
