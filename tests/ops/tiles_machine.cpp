// SPDX-License-Identifier: Apache-2.0
// cpu.h's answers of a CPU with tiles, for the kernels that are compiled once more (CMakeLists.txt).
#include "tessera/ops/cpu/cpu.h"

namespace tessera::ops {

// Everything around the tiles needs these instructions for real.
bool cpu_has_amx() {
  return __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512bw") != 0;
}
bool cpu_has_bf16() { return cpu_has_amx(); }
bool cpu_has_avx512() { return cpu_has_amx(); }
bool cpu_has_avx2() { return false; }

}  // namespace tessera::ops
