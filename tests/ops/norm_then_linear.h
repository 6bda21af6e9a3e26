// SPDX-License-Identifier: Apache-2.0
// A norm and the linear layer after it, as one function and as two: the same bits, and what is kept.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

namespace tessera::ops {

/// Bytes of the CPU's tensors that this thread has made while it lives, less those that it freed.
class LiveBytes {
 public:
  LiveBytes() : guard_(c10::DebugInfoKind::PROFILER_STATE, count_) {}
  int64_t now() const { return count_->bytes; }

 private:
  struct Count : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override { bytes += size; }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t bytes = 0;
  };
  std::shared_ptr<Count> count_ = std::make_shared<Count>();
  c10::DebugInfoGuard guard_;
};

/// Of x [3, rows, in], the norm's weight and bias [in], and the layer's [out, in] and [out].
using NormThenLinear = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

struct NormThenLinearSizes {
  int64_t rows, in, out;
};

inline std::vector<at::Tensor> norm_then_linear_inputs(const NormThenLinearSizes& sizes,
                                                       at::ScalarType dtype) {
  at::manual_seed(11);
  return {(1 + 2 * at::randn({3, sizes.rows, sizes.in})).to(dtype).requires_grad_(),
          (1 + at::randn({sizes.in}) / 4).to(dtype).requires_grad_(),
          (at::randn({sizes.in}) / 4).to(dtype).requires_grad_(),
          (at::randn({sizes.out, sizes.in}) / 8).to(dtype).requires_grad_(),
          at::randn({sizes.out}).to(dtype).requires_grad_()};
}

/// `together` is `apart`, bit for bit, gradients as well, whatever is frozen; and it keeps less for backward
/// by what the norm makes.
inline void expect_the_same_bits(const NormThenLinear& together, const NormThenLinear& apart,
                                 const NormThenLinearSizes& sizes, at::ScalarType dtype) {
  struct Run {
    std::vector<at::Tensor> values;
    int64_t kept = 0;
  };
  const auto run = [&](const NormThenLinear& layer, int frozen) {
    std::vector<at::Tensor> inputs = norm_then_linear_inputs(sizes, dtype);
    if (frozen >= 0) inputs[frozen] = inputs[frozen].detach();
    const LiveBytes live;
    const at::Tensor y = layer(inputs);
    Run result{{y.detach()}, live.now()};
    y.backward(at::randn(y.sizes()).to(dtype));
    for (const at::Tensor& input : inputs) result.values.push_back(input.grad());
    return result;
  };
  for (int frozen = -1; frozen < 5; ++frozen) {
    const Run found = run(together, frozen), expected = run(apart, frozen);
    for (int i = 0; i < 6; ++i) {
      const at::Tensor &a = found.values[i], &b = expected.values[i];
      ASSERT_EQ(a.defined(), b.defined()) << "value " << i << ", frozen " << frozen;
      EXPECT_EQ(a.defined(), i != frozen + 1 || frozen < 0);
      if (!a.defined()) continue;
      ASSERT_EQ(a.scalar_type(), dtype);
      EXPECT_TRUE(at::equal(a, b)) << "value " << i << ", frozen " << frozen;
    }
    if (frozen >= 0) continue;
    const auto normed = static_cast<int64_t>(3 * sizes.rows * sizes.in * at::elementSize(dtype));
    EXPECT_EQ(expected.kept - found.kept, normed);
  }
}

}  // namespace tessera::ops
