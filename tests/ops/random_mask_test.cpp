// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/random_mask.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::ops {
namespace {

TEST(DropoutMask, DropsTheAskedShareAndKeepsTheMean) {
  const std::vector<uint64_t> samples = {0, 1, 2, 3};
  for (const double rate : {0.1, 0.5, 0.9}) {
    const at::Tensor mask = dropout_mask(rate, 17, samples, 50001, at::kFloat);
    EXPECT_EQ(mask.sizes().vec(), (std::vector<int64_t>{4, 50001}));
    EXPECT_NEAR((mask == 0).to(at::kDouble).mean().item<double>(), rate, 0.005);
    EXPECT_NEAR(mask.mean().item<double>(), 1.0, 0.03);
    EXPECT_NEAR(mask.max().item<double>(), 1.0 / (1.0 - rate), 1e-3);
  }
}

TEST(DropoutMask, AnElementDependsOnItsKeySampleAndPlaceOnly) {
  const at::Tensor whole = dropout_mask(0.5, 17, std::vector<uint64_t>{3, 4, 5}, 1003, at::kFloat);
  const at::Tensor one = dropout_mask(0.5, 17, std::vector<uint64_t>{4}, 1003, at::kFloat);
  EXPECT_TRUE(at::equal(whole.narrow(0, 1, 1), one));
  const at::Tensor shorter = dropout_mask(0.5, 17, std::vector<uint64_t>{4}, 13, at::kFloat);
  EXPECT_TRUE(at::equal(one.narrow(1, 0, 13), shorter));
  EXPECT_FALSE(at::equal(whole[0], whole[1]));
  EXPECT_FALSE(at::equal(one, dropout_mask(0.5, 18, std::vector<uint64_t>{4}, 1003, at::kFloat)));
  const at::Tensor half = dropout_mask(0.5, 17, std::vector<uint64_t>{4}, 1003, at::kBFloat16);
  EXPECT_TRUE(at::equal(one, half.to(at::kFloat)));
}

TEST(DropoutMask, EndsOfTheRange) {
  const std::vector<uint64_t> samples = {1};
  EXPECT_TRUE(at::equal(dropout_mask(0.0, 1, samples, 9, at::kFloat), at::ones({1, 9})));
  EXPECT_TRUE(at::equal(dropout_mask(1.0, 1, samples, 9, at::kFloat), at::zeros({1, 9})));
  EXPECT_EQ(dropout_mask(0.5, 1, {}, 9, at::kFloat).numel(), 0);
  EXPECT_EQ(dropout_mask(0.5, 1, samples, 0, at::kFloat).numel(), 0);
  EXPECT_THROW(dropout_mask(1.5, 1, samples, 9, at::kFloat), InternalError);
}

TEST(DropPathMask, OneNumberASample) {
  std::vector<uint64_t> samples(20000);
  std::iota(samples.begin(), samples.end(), 100);
  const at::Tensor mask = drop_path_mask(0.2, 3, samples, at::kFloat);
  EXPECT_NEAR((mask == 0).to(at::kDouble).mean().item<double>(), 0.2, 0.01);
  EXPECT_NEAR(mask.max().item<double>(), 1.25, 1e-6);
  EXPECT_TRUE(
      at::equal(mask.narrow(0, 50, 2), drop_path_mask(0.2, 3, std::vector<uint64_t>{150, 151}, at::kFloat)));
  EXPECT_EQ(drop_path_mask(1.0, 3, samples, at::kFloat).abs().max().item<float>(), 0.0F);
}

}  // namespace
}  // namespace tessera::ops
