// cpu.h's answers of a CPU with tiles, for the kernels that are compiled once more (CMakeLists.txt).
#include <gtest/gtest.h>

#include <atomic>

#include "tessera/ops/cpu.h"
#include "tessera/ops/no_kernels.h"

namespace tessera::ops {
namespace {

std::atomic<int> off = 0;

// Everything around the tiles needs these instructions for real; without them LibTorch computes.
const bool kCanRun = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw");

TEST(Tiles, CanBeTestedHere) {
  if (!kCanRun) GTEST_SKIP() << "no AVX512_BF16: AMX's kernels are tested on machines with it";
}

}  // namespace

WithoutKernels::WithoutKernels() { ++off; }
WithoutKernels::~WithoutKernels() { --off; }
bool kernels_are_on() { return off == 0; }
bool cpu_has_amx() { return kCanRun; }
bool cpu_has_bf16() { return kCanRun; }
bool cpu_has_avx512() { return kCanRun; }
bool cpu_has_avx2() { return false; }
bool cpu_has_fp32_kernels() { return kCanRun; }
bool cpu_has_bf16_kernels() { return kCanRun; }
bool cpu_favours_bf16() { return kCanRun; }
bool onednn_would_misuse_amx() { return false; }

namespace vectors {
TESSERA_NO_VECTOR_KERNELS(Avx2);
}  // namespace vectors

}  // namespace tessera::ops
