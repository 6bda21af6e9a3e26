// SPDX-License-Identifier: Apache-2.0
// Every op and every optimizer's update on a GPU against the CPU, by LibTorch's operations and by the
// plug-in's kernels.
#include <ATen/ATen.h>

#include <memory>

#include "gpu.h"
#include "tessera/ops/convolution.h"
#include "tests/ops/any_layers.h"

namespace tessera::ops {
namespace {

double difference_from_cpu(const at::Tensor& found, const at::Tensor& expected) {
  EXPECT_EQ(found.is_cuda(), !tessera::testing::rehearses());
  EXPECT_EQ(found.scalar_type(), expected.scalar_type());
  return error(found, expected);
}

TEST(CudaOps, LayersAndTheirGradientsMatchTheCpu) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = tessera::testing::use_gpu(0);
  for (const bool ours : {false, true}) {
    const auto kernels = ours ? std::make_unique<tessera::testing::UsingKernels>() : nullptr;
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const AnyLayer& layer : any_layers()) {
        SCOPED_TRACE(layer.name + " in " + at::toString(dtype) + (ours ? " by kernels" : ""));
        const Tensors expected = run_layer(layer, dtype);
        const Tensors found = run_layer(layer, at::TensorOptions(dtype).device(gpu));
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_LT(difference_from_cpu(found[i], expected[i]), dtype == at::kFloat ? 1e-5 : 2e-2)
              << "output or gradient " << i;
        }
      }
    }
  }
}

TEST(CudaOps, UpdatesMatchTheCpuOverTenSteps) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = tessera::testing::use_gpu(0);
  for (const bool ours : {false, true}) {
    const auto kernels = ours ? std::make_unique<tessera::testing::UsingKernels>() : nullptr;
    for (const AnyUpdate& update : any_updates()) {
      SCOPED_TRACE(update.name + (ours ? " by kernels" : ""));
      const Tensors expected = after_steps(update, 10), found = after_steps(update, 10, gpu);
      // Muon's products may use narrower factors on a GPU.
      const double tolerance = update.name == "muon's direction" ? 2e-2 : 1e-5;
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_LT(difference_from_cpu(found[i], expected[i]), tolerance) << i;
    }
  }
}

/// x, weight and bias of a batch norm, its running mean and variance, and the weight of the convolution
/// behind it.
Tensors of_norm_and_convolution(at::ScalarType dtype, at::Device device) {
  at::manual_seed(5);
  const auto images = at::MemoryFormat::ChannelsLast;
  return {(1 + 2 * at::randn({3, 16, 14, 14})).to(device, dtype).contiguous(images).requires_grad_(),
          (1 + at::randn({16}) / 4).to(device, dtype).requires_grad_(),
          (at::randn({16}) / 4).to(device, dtype).requires_grad_(),
          at::randn({16}).to(device),
          (at::rand({16}) + 0.5).to(device),
          (at::randn({24, 16, 3, 3}) / 8).to(device, dtype).contiguous(images).requires_grad_()};
}

TEST(CudaOps, NormAndConvolutionMatchTheCpu) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = tessera::testing::use_gpu(0);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto run = [&](at::Device device) {
      Tensors t = of_norm_and_convolution(dtype, device);
      const BatchNorm norm{t[1], t[2], t[3], t[4], 1e-5, 0.1};
      const at::Tensor y = convolution(normed_images(t[0], norm, /*training=*/true, /*relu=*/true), t[5], 2);
      at::manual_seed(6);
      y.backward(at::randn(y.sizes()).to(device, dtype));
      return Tensors{y.detach(), t[0].grad(), t[1].grad(), t[2].grad(), t[3], t[4], t[5].grad()};
    };
    const Tensors expected = run(at::kCPU), found = run(gpu);
    for (size_t i = 0; i < expected.size(); ++i) {  // cuDNN multiplies fp32 in TF32
      EXPECT_LT(difference_from_cpu(found[i], expected[i]), dtype == at::kFloat ? 5e-3 : 3e-2) << i;
    }
  }
}

}  // namespace
}  // namespace tessera::ops
