#include "tessera/ops/cpu.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>

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

}  // namespace
}  // namespace tessera::ops
