// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/cpu.h"

#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tessera::ops {
namespace {

std::atomic<int> off = 0;  // WithoutKernels that live

#if defined(__x86_64__)

struct CpuId {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuId cpuid(unsigned leaf, unsigned subleaf) {
  CpuId out;
  if (__get_cpuid_count(leaf, subleaf, &out.eax, &out.ebx, &out.ecx, &out.edx) == 0) {
    return {};
  }
  return out;
}

bool announces_bf16() {
  constexpr unsigned kAvx512Bf16 = 1U << 5;
  return (cpuid(7, 1).eax & kAvx512Bf16) != 0;
}

bool is_intel() {
  constexpr unsigned kGenu = 0x756E6547;  // of "GenuineIntel"
  return cpuid(0, 0).ebx == kGenu;
}

bool announces_amx() {
  constexpr unsigned kAmxBf16 = 1U << 22, kAmxTile = 1U << 24;
  const CpuId features = cpuid(7, 0);
  return (features.edx & kAmxBf16) != 0 && (features.edx & kAmxTile) != 0 && announces_bf16();
}

// Asks the system too whether it saves these registers.
bool supports_avx512() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
}

bool supports_avx2() { return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0; }

// Linux lets a process use the 8 KiB of tile registers only after it has asked.
bool request_tiles() {
#if defined(__linux__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

#else

bool announces_bf16() { return true; }  // not known here: LibTorch decides
bool is_intel() { return false; }
bool announces_amx() { return false; }
bool supports_avx512() { return false; }
bool supports_avx2() { return false; }
bool request_tiles() { return false; }

#endif

bool says(const char* variable, std::string_view value) {
  const char* given = std::getenv(variable);
  return given != nullptr && given == value;
}
bool is_wanted(const char* variable) { return !says(variable, "0"); }

bool has_tile_palette() {
#if defined(__x86_64__)
  return cpuid(0x1D, 0).eax >= 1;
#else
  return false;
#endif
}

// Runs when the library is loaded, before oneDNN reads the variable in its first operation.
const bool kOneDnnLimited = [] {
  return onednn_would_misuse_amx() && setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16", 0) == 0;
}();

}  // namespace

WithoutKernels::WithoutKernels() { ++off; }
WithoutKernels::~WithoutKernels() { --off; }
bool kernels_are_on() { return off == 0; }

bool cpu_has_amx() {
  static const bool has = is_wanted("TESSERA_AMX") && cpu_has_bf16() && announces_amx() && request_tiles();
  return has;
}

bool cpu_has_bf16() {
  static const bool has = is_wanted("TESSERA_BF16") && announces_bf16();
  return has;
}

bool cpu_has_avx512() {
  static const bool has = is_wanted("TESSERA_AVX512") && supports_avx512();
  return has;
}

bool cpu_has_avx2() {
  static const bool has = is_wanted("TESSERA_AVX2") && supports_avx2();
  return has;
}

bool cpu_has_fp32_kernels() { return cpu_has_avx512() || cpu_has_avx2(); }
bool cpu_has_bf16_kernels() { return cpu_has_amx() || cpu_has_fp32_kernels(); }

bool cpu_favours_bf16() {
  static const bool favours =
      cpu_has_amx() || (cpu_has_avx512() && cpu_has_bf16() && (!is_intel() || says("TESSERA_BF16", "1")));
  return favours;
}

bool onednn_would_misuse_amx() {
  static const bool would = announces_amx() && !has_tile_palette();
  return would;
}

}  // namespace tessera::ops
