// SPDX-License-Identifier: Apache-2.0
// Layers that are called in pieces, and layers whose result nothing reads.
#include "tessera/ops/gradient_sums.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/cpu/cpu.h"
#include "tessera/ops/fp8_linear.h"
#include "tessera/ops/mlp.h"

namespace tessera::ops {
namespace {

constexpr int64_t kManyRows = 160, kInputs = 96, kHiddenUnits = 160, kOutputs = 64;

at::Tensor spread(at::IntArrayRef shape, double step, at::ScalarType dtype) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return at::arange(count, at::kDouble).mul_(step).sin_().view(shape).to(dtype);
}

/// Weights and biases of two layers, which are trained.
struct Layers {
  explicit Layers(at::ScalarType dtype)
      : all{spread({kHiddenUnits, kInputs}, 0.7, dtype), spread({kHiddenUnits}, 1.1, dtype),
            spread({kOutputs, kHiddenUnits}, 1.3, dtype), spread({kOutputs}, 2.1, dtype)} {
    for (at::Tensor& tensor : all) tensor.set_requires_grad(true);
  }
  std::vector<at::Tensor> all;
};

/// What a layer makes of rows [rows, in].
using Forward = std::function<at::Tensor(const Layers&, const at::Tensor& rows, Use use)>;

struct Kind {
  const char* name;
  Forward forward;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"linear", [](const Layers& of, const at::Tensor& rows,
                    Use use) { return linear(rows, of.all[0], of.all[1], use); }},
      {"mlp",
       [](const Layers& of, const at::Tensor& rows, Use use) {
         return mlp({{}, {}, rows}, of.all[0], of.all[1], of.all[2], of.all[3], {}, false, use);
       }},
      {"mlp_that_keeps",
       [](const Layers& of, const at::Tensor& rows, Use use) {
         return mlp({{}, {}, rows}, of.all[0], of.all[1], of.all[2], of.all[3], {}, true, use);
       }},
      {"two_layers",
       [](const Layers& of, const at::Tensor& rows, Use use) {
         return linear(gelu_output(linear(rows, of.all[0], of.all[1])), of.all[2], of.all[3], use);
       }},
      {"fp8",
       [](const Layers& of, const at::Tensor& rows, Use use) {
         return fp8_linear(gelu_output(fp8_linear(rows, of.all[0], of.all[1])), of.all[2], of.all[3], use);
       }},
  };
  return all;
}

/// Gradients of the rows and of the layers, where there are any. The loss is a function of the result's
/// shape alone.
std::vector<at::Tensor> gradients(const Forward& forward, at::ScalarType dtype, int64_t pieces, Use use) {
  Layers layers(dtype);
  at::Tensor rows = spread({kManyRows, kInputs}, 0.37, dtype).set_requires_grad(true);
  std::vector<at::Tensor> results, of_results;
  std::optional<GradientSums> sums;
  if (pieces > 1) sums.emplace();
  const int64_t count = kManyRows / pieces;
  for (int64_t i = 0; i < pieces; ++i) {
    results.push_back(forward(layers, rows.narrow(0, i * count, count), use));
    of_results.push_back(spread({kManyRows, results[0].size(1)}, 0.19, dtype).narrow(0, i * count, count));
  }
  sums.reset();
  torch::autograd::backward(results, of_results);
  std::vector<at::Tensor> found = {rows.grad()};
  for (const at::Tensor& tensor : layers.all) {
    if (tensor.grad().defined()) found.push_back(tensor.grad());
  }
  return found;
}

/// As autograd's sums of pieces that are rounded each are not: nearly all elements are the same bits, and
/// the others, whose exact value lies between two numbers, the next number.
TEST(GradientSums, PiecesAreRoundedOnceInBf16) {
  if (!cpu_has_bf16_kernels()) GTEST_SKIP() << "no bf16 kernels for this CPU";
  for (const Kind& kind : kinds()) {
    if (std::string(kind.name) == "fp8") continue;  // its weights' gradients are products of another kind
    SCOPED_TRACE(kind.name);
    const auto whole = gradients(kind.forward, at::kBFloat16, 1, Use::kRead);
    for (const int64_t pieces : {2, 4, 5}) {
      const auto found = gradients(kind.forward, at::kBFloat16, pieces, Use::kRead);
      ASSERT_EQ(found.size(), whole.size());
      EXPECT_TRUE(found[0].equal(whole[0])) << "gradient of the rows";
      for (size_t i = 1; i < found.size(); ++i) {
        const at::Tensor expected = whole[i].to(at::kDouble),
                         difference = (found[i] - whole[i]).to(at::kDouble);
        const auto others = difference.ne(0).sum().item<int64_t>();
        EXPECT_LE(static_cast<double>(others), 0.02 * static_cast<double>(expected.numel())) << i;
        const double largest = expected.abs().max().item<double>();
        EXPECT_TRUE(
            difference.abs().le(expected.abs() * std::ldexp(1.0, -7) + 1e-5 * largest).all().item<bool>())
            << i;
      }
    }
  }
}

/// Weights of fp32 keep autograd's sums.
TEST(GradientSums, AreOfBf16Alone) {
  const GradientSums sums;
  EXPECT_FALSE(gradient_sum_of(Layers(at::kFloat).all[0]));
  EXPECT_TRUE(gradient_sum_of(Layers(at::kBFloat16).all[0]));
  EXPECT_FALSE(gradient_sum_of(Layers(at::kBFloat16).all[0].detach()));
}

/// Products of linear layers that `body` makes on this thread.
int64_t products_of(const std::function<void()>& body) {
  static thread_local int64_t count = 0;
  count = 0;
  const auto handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function)
                                                                -> std::unique_ptr<at::ObserverContext> {
                                   const std::string name = function.name();
                                   count +=
                                       name == "tessera::linear" || name == "tessera::fp8_linear" ? 1 : 0;
                                   return nullptr;
                                 }).scopes({at::RecordScope::USER_SCOPE}));
  body();
  at::removeCallback(handle);
  return count;
}

TEST(UnreadResults, HaveTheSameGradientsForAProductLess) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const Kind& kind : kinds()) {
      const bool fp8 = std::string(kind.name) == "fp8";
      if (fp8 && dtype == at::kDouble) continue;
      SCOPED_TRACE(concat(kind.name, " ", at::toString(dtype)));
      std::vector<at::Tensor> read, unread;
      const int64_t of_read = products_of([&] { read = gradients(kind.forward, dtype, 1, Use::kRead); });
      const int64_t of_unread =
          products_of([&] { unread = gradients(kind.forward, dtype, 1, Use::kUnread); });
      ASSERT_EQ(read.size(), unread.size());
      for (size_t i = 0; i < read.size(); ++i) EXPECT_TRUE(read[i].equal(unread[i])) << i;
      if (of_read == 0) continue;  // LibTorch multiplies
      EXPECT_LT(of_unread, of_read);
      // (A layer of fp8 is one of bf16 inside.)
      EXPECT_TRUE(fp8 || of_read - of_unread == 1) << of_read << " and " << of_unread;
    }
  }
}

}  // namespace
}  // namespace tessera::ops
