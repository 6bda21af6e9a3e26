// SPDX-License-Identifier: Apache-2.0
// Linear layers on a GPU by the plug-in's products and in fp8, against the formula.
#include <ATen/ATen.h>

#include "gpu.h"
#include "tessera/ops/device/linear.h"
#include "tessera/ops/fp8_linear.h"
#include "tessera/ops/linear.h"
#include "tests/ops/beside_formula.h"

namespace tessera::ops {
namespace {

/// Layers use the plug-in's products while one lives.
class UsingProducts {
 public:
  UsingProducts() {
    if (!tessera::testing::rehearses())
      device::register_products(device::open_cuda().plugin->products, at::kCUDA);
  }
  ~UsingProducts() { device::register_products(nullptr, at::kCUDA); }
  UsingProducts(const UsingProducts&) = delete;
  UsingProducts& operator=(const UsingProducts&) = delete;
};

TEST(CudaProducts, AreLibTorchs) {
  TESSERA_NEEDS_GPUS(1);
  const at::Device gpu = tessera::testing::use_gpu(0);
  device::DeviceProducts products = *device::open_cuda().plugin->products;
  EXPECT_EQ(remove_faulty(products, gpu), std::vector<std::string>());
}

using Layer = std::vector<at::Tensor>;  // x, weight, bias, residual; direction last

Layer layer_of(int64_t rows, int64_t in, int64_t out) {
  at::manual_seed(1);
  return {at::randn({rows, in}).to(at::kBFloat16), (at::randn({out, in}) / std::sqrt(in)).to(at::kBFloat16),
          at::randn({out}).to(at::kBFloat16), at::randn({rows, out}).to(at::kBFloat16),
          at::randn({rows, out}).to(at::kBFloat16)};
}

/// Value and gradients of linear_add or linear_gelu.
Layer run(const Layer& layer, const at::TensorOptions& options, bool gelu) {
  Layer t;
  for (const at::Tensor& given : layer) {
    t.push_back(given.to(options.device(), options.dtype().toScalarType()).requires_grad_());
  }
  const at::Tensor y = gelu ? linear_gelu(t[0], t[1], t[2]) : linear_add(t[0], t[1], t[2], t[3]);
  y.backward(t[4].detach());
  Layer found = {y.detach(), t[0].grad(), t[1].grad(), t[2].grad()};
  if (!gelu) found.push_back(t[3].grad());
  return found;
}

TEST(CudaProducts, ValuesAndGradientsAreTheFormulas) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = tessera::testing::use_gpu(0);
  const UsingProducts using_products;
  for (const auto& [rows, in, out] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {1576, 768, 3072}, {197, 192, 576}, {7, 33, 50}, {130, 72, 1000}}) {
    for (const bool gelu : {false, true}) {
      SCOPED_TRACE(::testing::Message() << rows << ' ' << in << ' ' << out << (gelu ? " gelu" : ""));
      const Layer layer = layer_of(rows, in, out);
      const Layer expected = run(layer, at::kDouble, gelu);
      const Layer found = run(layer, at::TensorOptions(at::kBFloat16).device(gpu), gelu);
      for (size_t i = 0; i < expected.size(); ++i) EXPECT_LT(error(found[i], expected[i]), 0.01) << i;
    }
  }
}

// Which algorithm a product gets is decided by its first run.
TEST(CudaProducts, ARepeatedProductIsBitwiseTheFirst) {
  TESSERA_NEEDS_GPUS(1);
  const at::Device gpu = tessera::testing::use_gpu(0);
  const UsingProducts using_products;
  const Layer layer = layer_of(1576, 384, 1536);
  for (const bool gelu : {false, true}) {
    const auto once = [&] { return run(layer, at::TensorOptions(at::kBFloat16).device(gpu), gelu); };
    const Layer first = once();
    for (int repetition = 0; repetition < 3; ++repetition) {
      const Layer again = once();
      for (size_t i = 0; i < first.size(); ++i)
        EXPECT_TRUE(at::equal(first[i], again[i])) << gelu << ' ' << i;
    }
  }
}

TEST(CudaProducts, ABiasMayBeginAnywhere) {
  TESSERA_NEEDS_GPUS(1);
  const at::Device gpu = tessera::testing::use_gpu(0);
  const UsingProducts using_products;
  const Layer layer = layer_of(197, 384, 1000);
  const at::Tensor expected =
      at::linear(layer[0].to(at::kDouble), layer[1].to(at::kDouble), layer[2].to(at::kDouble));
  for (const int64_t offset : {0, 1, 2, 4, 37}) {
    const at::Tensor bias = at::empty({1100}, layer[2].options().device(gpu)).narrow(0, offset, 1000);
    bias.copy_(layer[2]);
    EXPECT_LT(error(linear(layer[0].to(gpu), layer[1].to(gpu), bias), expected), 0.01) << offset;
  }
}

// Where the GPU multiplies fp8, the same numbers as on the CPU but for the order of sums.
TEST(CudaFp8, ValuesAndGradientsAreTheCpus) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = tessera::testing::use_gpu(0);
  for (const auto& [rows, in, out] :
       std::vector<std::tuple<int64_t, int64_t, int64_t>>{{1576, 768, 3072}, {197, 192, 576}, {7, 33, 50}}) {
    SCOPED_TRACE(::testing::Message() << rows << ' ' << in << ' ' << out);
    const Layer layer = layer_of(rows, in, out);
    const auto run = [&](at::Device device) {
      Layer t;
      for (const at::Tensor& given : layer) t.push_back(given.detach().to(device).requires_grad_());
      const at::Tensor y = fp8_linear(t[0], t[1], t[2]);
      y.backward(t[4].detach());
      return Layer{y.detach(), t[0].grad(), t[1].grad(), t[2].grad()};
    };
    const Layer expected = run(at::kCPU), found = run(gpu);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_LT(error(found[i], expected[i]), 0.01) << i;
    EXPECT_TRUE(at::equal(fp8_rounded(layer[0].to(gpu)).cpu(), fp8_rounded(layer[0])));
  }
}

TEST(CudaFp8, ScaledProductIsThatOfTheRoundedNumbers) {
  TESSERA_NEEDS_GPUS(1);
  const at::Device gpu = tessera::testing::use_gpu(0);
  for (const auto& [m, k, n] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {256, 128, 64}, {300, 3072, 768}, {7, 33, 50}, {0, 16, 16}}) {
    const at::Tensor left = at::randn({m, k}).to(at::kBFloat16), right = at::randn({n, k}).to(at::kBFloat16);
    at::Tensor found;
    try {
      found = scaled_product(left.to(gpu), right.to(gpu), {});
    } catch (const c10::Error& error) {
      GTEST_SKIP() << "needs a GPU that multiplies fp8: " << error.what_without_backtrace();
    }
    ASSERT_EQ(found.sizes().vec(), (std::vector<int64_t>{m, n}));
    if (m == 0) continue;
    const at::Tensor exact =
        at::mm(fp8_rounded(left).to(at::kDouble), fp8_rounded(right).to(at::kDouble).t());
    EXPECT_LT(error(found, exact), 0.005) << m << ' ' << k << ' ' << n;
  }
}

}  // namespace
}  // namespace tessera::ops
