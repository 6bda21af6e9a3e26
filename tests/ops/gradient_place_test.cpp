// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <future>
#include <vector>

#include "tessera/ops/gradient_memory.h"
#include "tessera/ops/linear.h"
#include "tests/ops/has_kernels.h"

namespace tessera::ops {
namespace {

class GradientPlace : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!has_kernels(GetParam())) GTEST_SKIP() << "this CPU has no kernels for it, and LibTorch's ask nobody";
    at::manual_seed(3);
    weight_ = at::randn({24, 40}, GetParam()).requires_grad_();
    bias_ = at::randn({24}, GetParam()).requires_grad_();
    x_ = at::randn({33, 40}, GetParam()).requires_grad_();
  }
  at::Tensor backward() {
    weight_.mutable_grad().reset();
    linear(x_, weight_, bias_).square().sum().backward();
    return weight_.grad();
  }
  ops::GradientPlace place_of_the_weight(const at::Tensor& place) const {
    return [this, place](const at::Tensor& parameter) {
      return parameter.is_same(weight_) ? place.view(place.sizes()) : at::Tensor();
    };
  }

  at::Tensor weight_, bias_, x_;
};

TEST_P(GradientPlace, ReceivesTheGradientThatAutogradHandsOn) {
  const at::Tensor expected = backward().clone();
  const at::Tensor flat = at::zeros({3 + weight_.numel()}, GetParam());
  const at::Tensor place = flat.narrow(0, 3, weight_.numel()).view(weight_.sizes());
  {
    const GradientMemory places(place_of_the_weight(place));
    EXPECT_EQ(backward().data_ptr(), place.data_ptr());
  }
  EXPECT_TRUE(place.equal(expected));
  EXPECT_EQ(flat.narrow(0, 0, 3).abs().max().item<float>(), 0.0F) << "and nothing beside it";
  EXPECT_NE(backward().data_ptr(), place.data_ptr()) << "afterwards none is given";
}

TEST_P(GradientPlace, IsOfOneThread) {
  const at::Tensor place = at::empty_like(weight_);
  const GradientMemory places(place_of_the_weight(place));
  std::async(std::launch::async, [&] { EXPECT_NE(backward().data_ptr(), place.data_ptr()); }).get();
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GradientPlace, ::testing::Values(at::kFloat, at::kBFloat16));

}  // namespace
}  // namespace tessera::ops
