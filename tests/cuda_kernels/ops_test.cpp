// SPDX-License-Identifier: Apache-2.0
// Updates, losses, fp8, and the comparison that removes faulty kernels.
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/device/check_kernels.h"
#include "tests/cuda_kernels/kernel_cases.h"
#include "tests/cuda_kernels/table.h"

namespace tessera::ops {
namespace {

using cuda::UsingKernels;

TEST(Adamw, BitsAreTheCpusKernels) {
  for (const AdamwCase& c : adamw_cases()) {
    SCOPED_TRACE(::testing::Message() << c.count << " from " << c.begin << ' ' << c.copy);
    const Tensors expected = adamw_steps(c, at::kCPU);
    const UsingKernels kernels;
    const Tensors found = adamw_steps(c, at::kCPU);
    for (size_t i = 0; i < expected.size(); ++i) {
      if (c.copy == at::kFloat) {  // LibTorch's operations: the kernel makes no such copy
        EXPECT_LT(error(found[i], expected[i]), 1e-6) << i;
      } else {
        EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
      }
    }
    EXPECT_GT(found[3].abs().sum().item<double>(), 0);
  }
}

TEST(Adamw, IsThePapersFormula) {
  const UsingKernels kernels;
  const AdamwCase c{1003, 5, false, at::kBFloat16};
  const Tensors found = adamw_steps(c, at::kCPU);
  at::manual_seed(3);
  const int64_t whole = c.count + c.begin + 9;
  at::Tensor p = at::randn({whole}).to(at::kDouble), m = at::zeros_like(p), v = at::zeros_like(p);
  for (int step = 1; step <= 3; ++step) {
    const at::Tensor g = at::randn({whole}).to(at::kDouble) * 0.7;
    m = 0.9 * m + 0.1 * g;
    v = 0.98 * v + 0.02 * g * g;
    p = p * (1 - 1e-2 * 0.1) -
        1e-2 * (m / (1 - std::pow(0.9, step))) / ((v / (1 - std::pow(0.98, step))).sqrt() + 1e-8);
  }
  const auto part = [&](const at::Tensor& all) { return all.narrow(0, c.begin, c.count); };
  EXPECT_LT(error(part(found[0]), part(p)), 1e-6);
  EXPECT_TRUE(at::equal(part(found[3]), part(found[0]).to(at::kBFloat16)));
  EXPECT_EQ(found[3].narrow(0, 0, c.begin).abs().sum().item<double>(), 0);
  EXPECT_EQ(found[1].narrow(0, c.begin + c.count, 9).abs().sum().item<double>(), 0);
}

// Runs of a table are the runs one by one, and nothing changes outside of them: by the CPU's kernel and the
// device's bit for bit, by LibTorch's operations but for the rounding of its square root.
TEST(AdamwRuns, EqualSingleRuns) {
  for (const AdamwRunsCase& c : adamw_runs_cases()) {
    SCOPED_TRACE(::testing::Message() << c.count << " from " << c.begin << ' ' << c.copy);
    const Tensors expected = adamw_runs_steps(c, at::kCPU, true);
    const auto expect_same = [&](const char* by, bool bits) {
      const Tensors found = adamw_runs_steps(c, at::kCPU, false);
      for (size_t i = 0; i < expected.size(); ++i) {
        const double tolerance = i == 3 ? rounding(c.copy) : 1e-6;
        EXPECT_TRUE(bits ? at::equal(found[i], expected[i]) : error(found[i], expected[i]) < tolerance)
            << by << ": tensor " << i;
        EXPECT_TRUE(at::equal(found[i].ne(0), expected[i].ne(0))) << by << ": tensor " << i;
      }
      EXPECT_GT(found[3].abs().sum().item<double>(), 0) << by;
    };
    expect_same("the CPU's kernel", true);
    {
      const WithoutKernels foreign;
      expect_same("LibTorch's operations", false);
    }
    const UsingKernels kernels;
    expect_same("the device's kernel", c.copy != at::kFloat);  // it makes no such copy
  }
}

TEST(Adamw, NarrowGradientsGiveTheSameBits) {
  const UsingKernels kernels;
  for (const AdamwCase& c : adamw_cases()) expect_narrow_gradients(c, at::kCPU);
}

device::Number gradient_number = device::Number::kFloat;  // of the last update

TEST(Adamw, ReadsNarrowGradientsAsTheyAre) {
  device::DeviceKernels spying = cuda::kOnCpu;
  spying.adamw = [](const device::AdamwPass& pass, void*) { gradient_number = pass.gradient_number; };
  const UsingKernels kernels(spying);
  const at::Tensor wide = at::zeros({8});
  const auto update = [&](at::ScalarType gradient, at::ScalarType copy) {
    adamw(wide, wide.to(gradient), wide, wide, AdamwOptions{}, wide.to(copy));
    return gradient_number;
  };
  EXPECT_EQ(update(at::kBFloat16, at::kBFloat16), device::Number::kBFloat16);
  EXPECT_EQ(update(at::kHalf, at::kHalf), device::Number::kHalf);
  EXPECT_EQ(update(at::kHalf, at::kBFloat16), device::Number::kFloat) << "no kernel reads these";
  EXPECT_EQ(update(at::kFloat, at::kBFloat16), device::Number::kFloat);
}

TEST(CopyRuns, EqualLibTorchsCopies) {
  const UsingKernels kernels;
  for (const bool add : {false, true}) {
    for (const at::ScalarType from : {at::kFloat, at::kBFloat16, at::kHalf}) {
      expect_the_copies(from, from, add, at::kCPU);
      expect_the_copies(from, at::kFloat, add, at::kCPU);
    }
  }
}

TEST(CopyRuns, OtherCopiesAreLibTorchs) {
  const at::Tensor wide = at::randn({8}), narrow = wide.to(at::kBFloat16);
  EXPECT_FALSE(has_copy_runs({wide, wide})) << "no kernels";
  const UsingKernels kernels;
  EXPECT_TRUE(has_copy_runs({wide, narrow}));
  EXPECT_FALSE(has_copy_runs({narrow, wide})) << "it rounds";
  EXPECT_FALSE(has_copy_runs({wide, wide.to(at::kDouble)}));
  EXPECT_FALSE(has_copy_runs({wide.narrow(0, 0, 0), narrow.narrow(0, 0, 0)}));
}

TEST(CrossEntropy, ValueAndGradientAreTheFormulas) {
  const UsingKernels kernels;
  for (const int64_t classes : {1, 2, 10, 127, 1000, 5003}) {
    for (const bool two : {false, true}) {
      for (const double smoothing : {0.0, 0.1})
        expect_the_cross_entropy(5, classes, two, smoothing, at::kCPU);
    }
  }
}

TEST(CrossEntropy, LogitsOfAnySize) {
  const UsingKernels kernels;
  const at::Tensor labels = at::zeros({1}, at::kLong);
  const auto loss = [&](std::vector<float> logits) {
    const at::Tensor row = at::tensor(logits).view({1, -1});
    return cross_entropy_sum(row, {labels, {}, {}}, 0).item<float>();
  };
  EXPECT_EQ(loss({1000, 0, -1000}), 0);
  EXPECT_EQ(loss({0, 1000}), 1000);
  EXPECT_EQ(loss({-INFINITY, 3}), INFINITY);
  EXPECT_NEAR(loss({1, -INFINITY, 1}), std::log(2), 1e-6);
  EXPECT_TRUE(std::isnan(loss({1, NAN, 1})));
  EXPECT_TRUE(std::isnan(cross_entropy_sum(at::zeros({1, 3}), {labels + 3, {}, {}}, 0).item<float>()));
}

TEST(Gelu, ValueAndGradientMatchFormula) {
  const UsingKernels kernels;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const GeluCase& c : gelu_cases()) expect_the_gelu(c.count, c.begin, dtype, at::kCPU);
  }
}

TEST(Gelu, NonFiniteValuesGiveNan) {
  const UsingKernels kernels;
  expect_the_gelu_of_non_finite_values(at::kCPU);
}

TEST(GeluSums, GradientAndSumsMatchFormula) {
  const UsingKernels kernels;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const SumsCase& c : sums_cases()) expect_the_gelu_sums(c, dtype, at::kCPU);
  }
}

TEST(GeluSums, BlocksAreBounded) {
  EXPECT_EQ(cuda::sum_parts(1, 8), 1);
  EXPECT_EQ(cuda::sum_parts(65, 3072), 2);
  EXPECT_EQ(cuda::sum_parts(50432, 3072), 170) << "12 strips of columns, 2040 blocks";
  EXPECT_EQ(cuda::sum_parts(50432, int64_t{1} << 20), 1);
}

TEST(GeluSums, LibTorchComputesWithoutTheKernel) {
  device::DeviceKernels some = cuda::kOnCpu;
  some.gelu_backward_sums = nullptr;
  const UsingKernels kernels(some);
  const at::Tensor x = at::randn({6, 10}), gradient = at::randn({6, 10});
  const SummedGradient found = exact_gelu_backward_and_sums(gradient, x);
  EXPECT_LT(error(found.rows, at::gelu_backward(gradient, x)), 1e-6);
  EXPECT_FALSE(found.sums.defined());
}

TEST(ConcatSums, ResultAndSumsMatchFormula) {
  const UsingKernels kernels;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const SumsCase& c : sums_cases()) expect_the_concat(c, dtype, at::kCPU);
  }
}

// The kernels compute where they can, of any strides; LibTorch computes other dtypes and empty tensors.
TEST(Gelu, LibTorchComputesOtherDtypes) {
  device::DeviceKernels none = cuda::kOnCpu;
  none.gelu = [](const device::Gelu&, void*) { throw std::runtime_error("forward"); };
  none.gelu_backward = [](const device::GeluBackward&, void*) { throw std::runtime_error("backward"); };
  const at::Tensor x = at::randn({6, 10}), gradient = at::randn({6, 10});
  {
    const UsingKernels kernels(none);
    EXPECT_THROW(exact_gelu(x), std::runtime_error);
    EXPECT_THROW(exact_gelu_backward(gradient, x), std::runtime_error);
    const at::Tensor wide = x.to(at::kDouble);
    EXPECT_TRUE(at::equal(exact_gelu(wide), at::gelu(wide)));
    EXPECT_EQ(exact_gelu(x.narrow(0, 0, 0)).numel(), 0);
  }
  const UsingKernels kernels;
  EXPECT_LT(error(exact_gelu(x.t()), at::gelu(x.t())), 1e-6);
  EXPECT_LT(error(exact_gelu_backward(gradient.t(), x.t()), at::gelu_backward(gradient, x).t()), 1e-6);
  const at::Tensor of_x = gradient.t().contiguous();
  EXPECT_LT(error(exact_gelu_backward_and_output(of_x, x.t()), at::gelu(x).t()), 1e-6);
  EXPECT_LT(error(of_x, at::gelu_backward(gradient, x).t()), 1e-6);
}

TEST(Fp8Rows, NumbersAndScalesAreLibTorchs) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t columns : {1, 7, 16, 77, 1024, 5000}) {
      SCOPED_TRACE(::testing::Message() << columns << ' ' << dtype);
      const at::Tensor x = fp8_case(columns > 100 ? 5 : 260, columns, dtype);
      const Fp8Rows expected = fp8_rows(x);
      const UsingKernels kernels;
      const Fp8Rows found = fp8_rows(x);
      EXPECT_TRUE(at::equal(found.scales, expected.scales));
      EXPECT_TRUE(at::equal(found.numbers.view(at::kByte), expected.numbers.view(at::kByte)));
    }
  }
}

TEST(Fp8Rows, ARowThatIsNotFiniteIsNan) {
  const UsingKernels kernels;
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    at::Tensor x = at::ones({3, 40});
    x[1][39] = bad;
    const at::Tensor found = fp8_rounded(x);
    EXPECT_TRUE(at::isnan(found[1]).all().item<bool>());
    EXPECT_TRUE(at::equal(found[0], at::ones({40}, at::kBFloat16)));
    EXPECT_TRUE(at::equal(found[2], found[0]));
  }
}

/// The kernel alone: what is filled up is zeros.
TEST(Fp8Rows, WhatIsFilledUpIsZero) {
  const at::Tensor x = at::randn({5, 33});
  const at::Tensor numbers = at::full({16, 48}, 0x55, at::kByte), scales = at::full({16}, 9.0F);
  cuda::fp8_rows({device::Number::kFloat, 5, 33, 16, 48, x.const_data_ptr(), numbers.data_ptr<uint8_t>(),
                  scales.data_ptr<float>()},
                 nullptr);
  const Fp8Rows expected = fp8_rows(at::constant_pad_nd(x, {0, 15, 0, 11}));
  EXPECT_TRUE(at::equal(numbers, expected.numbers.view(at::kByte)));
  EXPECT_TRUE(at::equal(scales, expected.scales.view({-1})));
}

/// Faults of the CPU's kernels after `change`; what is left of the table.
template <typename Change>
std::pair<device::DeviceKernels, std::vector<std::string>> judged(const Change& change) {
  const WithoutKernels without;
  device::DeviceKernels kernels = cuda::kOnCpu;
  change(kernels);
  std::vector<std::string> faults = remove_faulty(kernels, at::kCPU);
  EXPECT_EQ(device::kernels_for(at::ones({1})), nullptr);
  return {kernels, faults};
}

TEST(RemoveFaulty, KeepsEveryRightKernel) {
  const auto [kernels, faults] = judged([](device::DeviceKernels&) {});
  EXPECT_EQ(faults, std::vector<std::string>());
  EXPECT_NE(kernels.norm_forward, nullptr);
  EXPECT_LT(cuda::norm_parts(3300, 8), 3300) << "no block of the comparison has several rows";
  EXPECT_NE(kernels.adamw, nullptr);
  EXPECT_NE(kernels.copy_runs, nullptr);
  EXPECT_NE(kernels.cross_entropy, nullptr);
  EXPECT_NE(kernels.gelu, nullptr);
  EXPECT_NE(kernels.gelu_backward_sums, nullptr);
  EXPECT_NE(kernels.concat_sums, nullptr);
  EXPECT_NE(kernels.fp8_rows, nullptr);
}

// Kernels with one fault each: it is found, and no other kernel is removed.
TEST(RemoveFaulty, FindsEachFault) {
  const auto expect = [](const char* kernel, const char* text, const auto& change) {
    const auto [kernels, faults] = judged(change);
    ASSERT_EQ(faults.size(), 1U) << kernel;
    EXPECT_TRUE(faults[0].starts_with(concat("kernel '", kernel, "' "))) << faults[0];
    EXPECT_NE(faults[0].find(text), std::string::npos) << faults[0];
    EXPECT_TRUE(faults[0].ends_with("; LibTorch's operations are used instead")) << faults[0];
    const std::string name = kernel;
    EXPECT_EQ(kernels.norm_forward == nullptr, name == "layer_norm");
    EXPECT_EQ(kernels.norm_backward == nullptr, name == "layer_norm");
    EXPECT_EQ(kernels.adamw == nullptr, name == "adamw");
    EXPECT_EQ(kernels.copy_runs == nullptr, name == "copy_runs");
    EXPECT_EQ(kernels.cross_entropy == nullptr, name == "cross_entropy");
    EXPECT_EQ(kernels.cross_entropy_backward == nullptr, name == "cross_entropy");
    EXPECT_EQ(kernels.gelu == nullptr, name == "gelu");
    EXPECT_EQ(kernels.gelu_backward == nullptr, name == "gelu");
    EXPECT_EQ(kernels.gelu_backward_sums == nullptr, name == "gelu_backward_sums");
    EXPECT_EQ(kernels.concat_sums == nullptr, name == "concat_sums");
    EXPECT_EQ(kernels.fp8_rows == nullptr, name == "fp8_rows");
    EXPECT_NE(kernels.uint8_images, nullptr);
  };
  expect("layer_norm", "normalised rows off by ", [](device::DeviceKernels& k) {
    k.norm_forward = [](const device::NormForward& pass, void* stream) {
      device::NormForward other = pass;
      other.epsilon = 0.1F;
      cuda::norm_forward(other, stream);
    };
  });
  expect("layer_norm", "gradient of the input off by ", [](device::DeviceKernels& k) {
    k.norm_backward = [](const device::NormBackward& pass, void* stream) {
      device::NormBackward other = pass;
      other.of_sum = nullptr;
      cuda::norm_backward(other, stream);
    };
  });
  expect("cross_entropy", "loss off by ", [](device::DeviceKernels& k) {
    k.cross_entropy = [](const device::CrossEntropyForward& pass, void* stream) {
      device::CrossEntropyForward other = pass;
      other.of.smoothing = 0;
      cuda::cross_entropy(other, stream);
    };
  });
  expect("cross_entropy", "gradient of the logits off by ", [](device::DeviceKernels& k) {
    k.cross_entropy_backward = [](const device::CrossEntropyBackward& pass, void* stream) {
      device::CrossEntropyBackward other = pass;
      other.of.second = nullptr;
      cuda::cross_entropy_backward(other, stream);
    };
  });
  expect("gelu", "gelu(x) of backward off by ", [](device::DeviceKernels& k) {
    k.gelu_backward = [](const device::GeluBackward& pass, void* stream) {
      device::GeluBackward other = pass;
      std::vector<float> nowhere(static_cast<size_t>(pass.count));
      if (pass.y != nullptr) other.y = nowhere.data();
      cuda::gelu_backward(other, stream);
    };
  });
  expect("gelu_backward_sums", "sums of its columns off by ", [](device::DeviceKernels& k) {
    k.gelu_backward_sums = [](const device::GeluBackwardSums& pass, void* stream) {
      device::GeluBackwardSums other = pass;
      --other.rows;
      cuda::gelu_backward_sums(other, stream);
      cuda::gelu_backward({pass.number, pass.rows * pass.width, pass.gradient, pass.x, pass.of_x, nullptr},
                          stream);
    };
  });
  expect("copy_runs", "sums off by ", [](device::DeviceKernels& k) {
    k.copy_runs = [](const device::CopyPass& pass, void* stream) {
      device::CopyPass other = pass;
      other.add = false;
      cuda::copy_runs(other, stream);
    };
  });
  expect("concat_sums", "concatenation off by ", [](device::DeviceKernels& k) {
    k.concat_sums = [](const device::ConcatSums& pass, void* stream) {
      device::ConcatSums other = pass;
      std::swap(other.part[0], other.part[1]);
      cuda::concat_sums(other, stream);
    };
  });
  expect("adamw", "parameters off by ", [](device::DeviceKernels& k) {
    k.adamw = [](const device::AdamwPass& pass, void* stream) {
      device::AdamwPass other = pass;
      --other.count;
      cuda::adamw(other, stream);
    };
  });
  expect("adamw", "bf16 copy of the parameters off by ", [](device::DeviceKernels& k) {
    k.adamw = [](const device::AdamwPass& pass, void* stream) {
      device::AdamwPass other = pass;
      other.copy = nullptr;
      cuda::adamw(other, stream);
    };
  });
  expect("fp8_rows", "values in e4m3 off by ", [](device::DeviceKernels& k) {
    k.fp8_rows = [](const device::Fp8Pass& pass, void* stream) {
      cuda::fp8_rows(pass, stream);
      pass.numbers[17] ^= 1;
    };
  });
  expect("layer_norm", "failed: out of order", [](device::DeviceKernels& k) {
    k.norm_forward = [](const device::NormForward&, void*) { throw std::runtime_error("out of order"); };
  });
}

TEST(RemoveFaulty, NamesEveryDifferenceOfEveryKernel) {
  const auto [kernels, faults] = judged([](device::DeviceKernels& k) {
    k.norm_backward = [](const device::NormBackward& pass, void* stream) {
      device::NormBackward other = pass;
      other.of_sum = nullptr;
      cuda::norm_backward(other, stream);
      std::swap(other.of_weight, other.of_bias);
      if (pass.partial != nullptr) cuda::norm_backward(other, stream);
    };
    k.fp8_rows = [](const device::Fp8Pass& pass, void* stream) {
      cuda::fp8_rows(pass, stream);
      pass.numbers[17] ^= 1;
    };
  });
  ASSERT_EQ(faults.size(), 2U);
  for (const char* what : {"gradient of the input off by ", ", gradient of the weight off by ",
                           ", gradient of the bias off by ", " of the largest value (tolerance "})
    EXPECT_NE(faults[0].find(what), std::string::npos) << faults[0];
  EXPECT_EQ(faults[0].find("normalised rows"), std::string::npos) << faults[0];
  EXPECT_NE(faults[1].find("(tolerance 0)"), std::string::npos) << faults[1];
}

// A table without some kernels: their operations are LibTorch's, and the others go on.
TEST(DeviceKernels, MissingOnesAreLibTorchs) {
  device::DeviceKernels some = cuda::kOnCpu;
  some.norm_forward = nullptr;
  some.adamw = nullptr;
  some.cross_entropy_backward = nullptr;
  some.fp8_rows = nullptr;
  const UsingKernels kernels(some);
  expect_the_norm({5, 192}, {true, true, true}, at::kFloat, at::kCPU);
  expect_the_cross_entropy(5, 100, true, 0.1, at::kCPU);
  const Tensors t = adamw_steps({100, 0, false, at::kBFloat16}, at::kCPU);
  EXPECT_GT(t[3].abs().sum().item<double>(), 0);
  const at::Tensor x = fp8_case(5, 77, at::kFloat);
  EXPECT_LT(error(fp8_rounded(x[3].view({1, -1})), x[3].view({1, -1})), 0.07);
  EXPECT_EQ(device::kernels_for(x, &device::DeviceKernels::norm_forward), nullptr);
  EXPECT_NE(
      device::kernels_for(x, &device::DeviceKernels::norm_backward, &device::DeviceKernels::cross_entropy),
      nullptr);
}

}  // namespace
}  // namespace tessera::ops
