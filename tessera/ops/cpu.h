// What this CPU can do, and a guard against what oneDNN believes of it.
#pragma once

namespace tessera::ops {

/// AMX for bf16 is there, the kernel grants it to this process, and neither TESSERA_AMX nor TESSERA_BF16 is
/// "0". Asked once.
bool cpu_has_amx();

/// Products of bf16 are instructions of this CPU (AVX512_BF16; taken for granted where it is no x86), and
/// TESSERA_BF16 is not "0" (which means no kernels in bf16 at all). Asked once.
bool cpu_has_bf16();

/// AVX-512 F, BW, DQ and VL are there (every x86 server CPU since 2017 that has AVX-512), and TESSERA_AVX512
/// is not "0". Asked once. (The kernels for AMX use AVX-512 too, and do not ask this.)
bool cpu_has_avx512();

/// The same, and products of bf16 are instructions of it: cpu_has_avx512() and cpu_has_bf16().
bool cpu_has_avx512_bf16();

/// This room has kernels in bf16 for this CPU: cpu_has_amx() or cpu_has_avx512_bf16().
bool cpu_has_bf16_kernels();

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
