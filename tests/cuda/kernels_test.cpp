// SPDX-License-Identifier: Apache-2.0
// The plug-in's fused kernels on a GPU, against the plain formulas and the CPU's numbers.
#include "tessera/device/kernels.h"

#include "gpu.h"
#include "tessera/data/open_source.h"
#include "tessera/eager/fused_uint8_images.h"
#include "tessera/ops/device/check_kernels.h"
#include "tests/cuda_kernels/kernel_cases.h"
#include "tests/data/uint8_image_cases.h"

namespace tessera::ops {
namespace {

using tessera::testing::UsingKernels;

TEST(CudaKernels, AreLibTorchs) {
  TESSERA_NEEDS_GPUS(1);
  const at::Device gpu = tessera::testing::use_gpu(0);
  device::DeviceKernels kernels = *device::open_cuda().plugin->kernels;
  EXPECT_EQ(remove_faulty(kernels, gpu), std::vector<std::string>());
  EXPECT_EQ(eager::remove_faulty_uint8_images(kernels, gpu), std::vector<std::string>());
}

TEST(CudaKernels, NormsAreTheFormulas) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = tessera::testing::use_gpu(0);
  const UsingKernels kernels;
  std::vector<NormCase> cases = norm_cases();
  cases.insert(cases.end(), {{12608, 768}, {5000, 33}, {788, 5120}, {150, 8200}});
  for (const NormCase& size : cases) {
    for (const NormUse& use : norm_uses()) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
        expect_the_norm(size, use, dtype, gpu);
    }
  }
}

// Sums of rows do not depend on which block is done first.
TEST(CudaKernels, NormsGradientsAreTheSameBitsEveryTime) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = tessera::testing::use_gpu(0);
  const UsingKernels kernels;
  at::manual_seed(5);
  const auto values = [&](at::IntArrayRef shape) { return at::randn(shape).to(gpu, at::kBFloat16); };
  const at::Tensor x = values({12608, 768}), direction = values({12608, 768}), weight = values({768});
  const auto gradients = [&] {
    const Tensors t = {x.clone().requires_grad_(), weight.clone().requires_grad_(),
                       weight.clone().requires_grad_()};
    layer_norm(t[0], t[1], t[2], 1e-6).backward(direction);
    return Tensors{t[0].grad(), t[1].grad(), t[2].grad()};
  };
  const Tensors first = gradients();
  for (int again = 0; again < 5; ++again) {
    const Tensors found = gradients();
    for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(at::equal(found[i], first[i])) << i;
  }
}

TEST(CudaKernels, AdamwsBitsAreTheCpus) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = tessera::testing::use_gpu(0);
  const UsingKernels kernels;
  std::vector<AdamwCase> cases = adamw_cases();
  cases.push_back({(1 << 20) + 3, 0, false, at::kBFloat16});
  for (const AdamwCase& c : cases) {
    SCOPED_TRACE(::testing::Message() << c.count << " from " << c.begin << ' ' << c.copy);
    const Tensors expected = adamw_steps(c, at::kCPU), found = adamw_steps(c, gpu);
    for (size_t i = 0; i < expected.size(); ++i) {
      if (c.copy == at::kFloat) {  // LibTorch's operations: the kernel makes no such copy
        EXPECT_LT(error(found[i], expected[i]), 1e-6) << i;
      } else {
        EXPECT_TRUE(at::equal(found[i].cpu(), expected[i])) << i;
      }
    }
  }
}

TEST(CudaKernels, AdamwsRunsEqualTheCpus) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = tessera::testing::use_gpu(0);
  std::vector<AdamwRunsCase> cases = adamw_runs_cases();
  cases.push_back(
      {(1 << 20) + 3, 0, false, at::kBFloat16, {{0, 768, 1}, {768, 1000000, 0}, {1000001, 1048579, 2}}});
  for (const AdamwRunsCase& c : cases) {
    SCOPED_TRACE(::testing::Message() << c.count << " from " << c.begin << ' ' << c.copy);
    const Tensors expected = adamw_runs_steps(c, at::kCPU, true);
    for (const bool ours : {false, true}) {
      const auto kernels = ours ? std::make_unique<UsingKernels>() : nullptr;
      const Tensors found = adamw_runs_steps(c, gpu, false);
      for (size_t i = 0; i < expected.size(); ++i) {
        const at::Tensor here = found[i].cpu();
        const bool bits = ours && c.copy != at::kFloat;  // the kernel makes no such copy
        const double tolerance = i == 3 ? rounding(c.copy) : 1e-6;
        EXPECT_TRUE(bits ? at::equal(here, expected[i]) : error(here, expected[i]) < tolerance)
            << i << (ours ? ", kernel" : ", operations");
      }
    }
  }
}

TEST(CudaKernels, AdamwsNarrowGradientsGiveTheSameBits) {
  TESSERA_NEEDS_GPUS(1);
  const at::Device gpu = tessera::testing::use_gpu(0);
  const UsingKernels kernels;
  for (const AdamwCase& c : adamw_cases()) expect_narrow_gradients(c, gpu);
}

TEST(CudaKernels, CopyRunsEqualLibTorchsCopies) {
  TESSERA_NEEDS_GPUS(1);
  const at::Device gpu = tessera::testing::use_gpu(0);
  const UsingKernels kernels;
  for (const bool add : {false, true}) {
    for (const at::ScalarType from : {at::kFloat, at::kBFloat16, at::kHalf}) {
      expect_the_copies(from, from, add, gpu);
      expect_the_copies(from, at::kFloat, add, gpu);
    }
  }
}

TEST(CudaKernels, CrossEntropiesAreTheFormulas) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = tessera::testing::use_gpu(0);
  const UsingKernels kernels;
  for (const int64_t classes : {1, 2, 10, 127, 1000, 21843}) {
    for (const int64_t rows : {5, 256}) {
      for (const bool two : {false, true}) {
        for (const double smoothing : {0.0, 0.1})
          expect_the_cross_entropy(rows, classes, two, smoothing, gpu);
      }
    }
  }
}

TEST(CudaKernels, GeluMatchesFormula) {
  TESSERA_NEEDS_GPUS(1);  // to more digits than the CPU's GELU has
  const at::Device gpu = tessera::testing::use_gpu(0);
  const UsingKernels kernels;
  std::vector<GeluCase> cases = gelu_cases();
  cases.push_back({(1 << 22) + 3, 0});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const GeluCase& c : cases) expect_the_gelu(c.count, c.begin, dtype, gpu);
  }
  expect_the_gelu_of_non_finite_values(gpu);
}

TEST(CudaKernels, GeluSumsMatchFormula) {
  TESSERA_NEEDS_GPUS(1);
  const at::Device gpu = tessera::testing::use_gpu(0);
  const UsingKernels kernels;
  std::vector<SumsCase> cases = sums_cases();
  cases.insert(cases.end(), {{12608, 3072, 0}, {5000, 1029, 0}});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const SumsCase& c : cases) expect_the_gelu_sums(c, dtype, gpu);
  }
}

TEST(CudaKernels, ConcatSumsMatchFormula) {
  TESSERA_NEEDS_GPUS(1);
  const at::Device gpu = tessera::testing::use_gpu(0);
  const UsingKernels kernels;
  std::vector<SumsCase> cases = sums_cases();
  cases.insert(cases.end(), {{12608, 768, 0}, {5000, 343, 0}});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const SumsCase& c : cases) expect_the_concat(c, dtype, gpu);
  }
}

TEST(CudaKernels, Fp8RowsAreTheCpusBits) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = tessera::testing::use_gpu(0);
  const UsingKernels kernels;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t columns : {1, 7, 16, 77, 1024, 5000, 20480}) {
      SCOPED_TRACE(::testing::Message() << columns << ' ' << dtype);
      const at::Tensor x = fp8_case(260, columns, dtype);
      const Fp8Rows expected = fp8_rows(x), found = fp8_rows(x.to(gpu));
      EXPECT_TRUE(at::equal(found.scales.cpu(), expected.scales));
      EXPECT_TRUE(at::equal(found.numbers.view(at::kByte).cpu(), expected.numbers.view(at::kByte)));
    }
  }
}

TEST(CudaKernels, PicturesAreTheHostsBits) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = tessera::testing::use_gpu(0);
  const UsingKernels kernels;
  for (const data::PictureCase& setting : data::uint8_image_cases()) {
    SCOPED_TRACE(setting.name);
    const auto source = data::open_source("fake:50", "train", {20, setting.transform.channels, 7});
    const eager::Normalisation normalisation = eager::Normalisation::of(setting.transform);
    data::LoaderOptions options = setting.loader;
    data::TrainLoader numbers(*source, setting.transform, options, 0);
    eager::deliver_for(gpu, &options);
    data::TrainLoader bytes(*source, setting.transform, options, 0);
    for (int64_t step = 0; step < 3 * options.accumulation; ++step) {
      const data::Batch expected = numbers.next(), batch = bytes.next();
      if (expected.size == 0) continue;
      const at::Tensor host =
          at::from_blob(const_cast<float*>(expected.images.data()),
                        {expected.size, expected.channels, expected.height, expected.width}, at::kFloat);
      EXPECT_TRUE(at::equal(eager::images_of(batch, normalisation, gpu).cpu(), host)) << "step " << step;
    }
  }
}

}  // namespace
}  // namespace tessera::ops
