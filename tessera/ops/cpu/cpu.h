// SPDX-License-Identifier: Apache-2.0
// What this CPU can do, and a guard against what oneDNN believes of it.
#pragma once

namespace tessera::ops {

/// AMX for bf16 is there, the kernel grants it to this process, and neither TESSERA_AMX nor TESSERA_BF16 is
/// "0". Asked once.
bool cpu_has_amx();

/// Products of bf16 are instructions of this CPU (AVX512_BF16; taken for granted where it is no x86), and
/// TESSERA_BF16 is not "0". Asked once.
bool cpu_has_bf16();

/// AVX-512 F, BW, DQ and VL are there (every x86 server CPU since 2017 that has AVX-512), and TESSERA_AVX512
/// is not "0". Asked once. (The kernels for AMX use AVX-512 too, and do not ask this.)
bool cpu_has_avx512();

/// AVX2 and FMA are there (nearly every x86 CPU since 2013 to 2017), and TESSERA_AVX2 is not "0".
/// Asked once.
bool cpu_has_avx2();

/// This room has kernels in fp32 for this CPU: cpu_has_avx512() or cpu_has_avx2(); in bf16: those or
/// cpu_has_amx().
bool cpu_has_fp32_kernels();
bool cpu_has_bf16_kernels();

/// They multiply bf16 by its own instructions, which takes less time than by fp32's: cpu_has_amx(), or
/// AVX-512 with cpu_has_bf16() that is not Intel's, which begins a vector of such products every second cycle
/// and meanwhile four vectors of fp32's. (If TESSERA_BF16 is "1", its instructions are used there too.)
/// Elsewhere the kernels widen bf16 and multiply fp32. Asked once.
bool cpu_favours_bf16();

/// True where CPUID announces AMX but not its tile palette (some virtual machines). oneDNN then configures
/// empty tiles and dies of an illegal instruction in its first bf16 product. Loading this library limits
/// oneDNN to AVX-512 there (environment variable ONEDNN_MAX_CPU_ISA, unless it is set already); our own
/// kernels need no palette from CPUID.
bool onednn_would_misuse_amx();

/// While one lives, every op of this room computes as it does on a device for which the room has no kernels:
/// with LibTorch's operations. For tests of that path where there is no such device. Made and destroyed while
/// no op runs.
class WithoutKernels {
 public:
  WithoutKernels();
  ~WithoutKernels();
  WithoutKernels(const WithoutKernels&) = delete;
  WithoutKernels& operator=(const WithoutKernels&) = delete;
};
bool kernels_are_on();

}  // namespace tessera::ops
