// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/cpu.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

namespace tessera::ops {
namespace {

// Loading the library must have made oneDNN's own bf16 products safe on this machine.
TEST(Cpu, OneDnnComputesInBf16) {
  if (onednn_would_misuse_amx()) {
    ASSERT_NE(std::getenv("ONEDNN_MAX_CPU_ISA"), nullptr);
  }
  const at::Tensor a = at::ones({64, 64}, at::kBFloat16);
  EXPECT_EQ(at::mm(a, a)[5][7].item<float>(), 64.0F);
}

TEST(Cpu, TheAnswerDoesNotChange) { EXPECT_EQ(cpu_has_amx(), cpu_has_amx()); }

bool is_denied(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::string_view(value) == "0";
}

// The test program runs with each of the variables in turn (CMakeLists.txt).
TEST(Cpu, AVariableDeniesEachKindOfKernel) {
  EXPECT_FALSE(is_denied("TESSERA_AMX") && cpu_has_amx());
  EXPECT_FALSE(is_denied("TESSERA_AVX512") && cpu_has_avx512());
  EXPECT_FALSE(is_denied("TESSERA_BF16") && (cpu_has_bf16() || cpu_favours_bf16()));
  EXPECT_FALSE(cpu_favours_bf16() && !cpu_has_bf16_kernels());
  EXPECT_FALSE(is_denied("TESSERA_AVX2") && cpu_has_avx2());
  EXPECT_EQ(cpu_has_fp32_kernels(), cpu_has_avx512() || cpu_has_avx2());
  EXPECT_EQ(cpu_has_bf16_kernels(), cpu_has_amx() || cpu_has_fp32_kernels());
#if defined(__x86_64__)
  if (!is_denied("TESSERA_AVX512") && __builtin_cpu_supports("avx512dq") != 0) {
    EXPECT_TRUE(cpu_has_avx512());
  }
  if (!is_denied("TESSERA_AVX2") && __builtin_cpu_supports("avx2") != 0 &&
      __builtin_cpu_supports("fma") != 0) {
    EXPECT_TRUE(cpu_has_avx2());
  }
#endif
}

// Its own instructions for bf16 can be had on any CPU that has them.
TEST(Cpu, AVariableAsksForInstructionsForBf16) {
  const char* value = std::getenv("TESSERA_BF16");
  if (value == nullptr || std::string_view(value) != "1") {
    GTEST_SKIP() << "TESSERA_BF16 is not 1 (ops.WithBF16 sets it)";
  }
  EXPECT_EQ(cpu_favours_bf16(), cpu_has_amx() || (cpu_has_avx512() && cpu_has_bf16()));
}

}  // namespace
}  // namespace tessera::ops
