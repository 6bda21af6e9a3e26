// What this CPU can do, and two things about the process that decide how fast and whether it computes.
#pragma once

namespace tessera::ops {

/// AMX for bf16 is there, the kernel grants it to this process, and TESSERA_AMX is not "0". Asked once.
bool cpu_has_amx();

/// True where CPUID announces AMX but not its tile palette (some virtual machines). oneDNN then configures
/// empty tiles and dies of an illegal instruction in its first bf16 product. Loading this library limits
/// oneDNN to AVX-512 there (environment variable ONEDNN_MAX_CPU_ISA, unless it is set already); our own
/// kernels need no palette from CPUID.
bool onednn_would_misuse_amx();

/// Keeps freed memory in the process instead of giving it back to the system after every tensor: page faults
/// of fresh memory otherwise take more time than the maths. For programs to call at start; no effect
/// elsewhere than with glibc.
void keep_freed_memory();

}  // namespace tessera::ops
