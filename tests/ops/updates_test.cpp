// SPDX-License-Identifier: Apache-2.0
// Updates of flat shards: a number is the same bits wherever a shard or a thread's part of it begins and
// ends.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tessera/ops/adamw.h"
#include "tessera/ops/cpu/cpu.h"
#include "tessera/ops/elementwise.h"
#include "tessera/ops/orthogonalise.h"
#include "tessera/ops/square_sum.h"
#include "tests/ops/beside_formula.h"

namespace tessera::ops {
namespace {

/// An update of t[0], the parameter, by t[1], the gradient; t[2] and t[3] are what is kept.
struct Update {
  std::string name;
  std::function<void(const Tensors&, int64_t step)> run;
};

std::vector<Update> updates() {
  return {
      {"adamw",
       [](const Tensors& t, int64_t step) {
         adamw(t[0], t[1], t[2], t[3], {1e-2, 0.9, 0.98, 1e-8, 0.1, step, 0.7, false});
       }},
      {"adam",
       [](const Tensors& t, int64_t step) {
         adamw(t[0], t[1], t[2], t[3], {1e-2, 0.9, 0.98, 1e-8, 0.1, step, 0.7, true});
       }},
      {"sgd",
       [](const Tensors& t, int64_t) {
         sgd(t[0], t[1], t[2], {1e-2, 0.9, 1e-3, true, 0.7});
       }},
      {"lion",
       [](const Tensors& t, int64_t) {
         lion(t[0], t[1], t[2], {1e-3, 0.9, 0.99, 0.1, 0.7});
       }},
      {"move_average", [](const Tensors& t, int64_t) { move_average(t[0], t[1], 0.9); }},
  };
}

// More than a thread's least part (16,384), and no multiple of a vector.
constexpr int64_t kNumbers = 70001;

/// Two updates in parts that begin at 0 and at `cuts`.
Tensors updated(const Update& update, int threads, std::vector<int64_t> cuts) {
  at::set_num_threads(threads);
  at::manual_seed(6);
  Tensors tensors = {at::randn({kNumbers}), {}, at::zeros({kNumbers}), at::zeros({kNumbers})};
  cuts.push_back(kNumbers);
  for (int64_t step = 1; step <= 2; ++step) {
    tensors[1] = at::randn({kNumbers});
    int64_t begin = 0;
    for (const int64_t end : cuts) {
      Tensors parts;
      for (const at::Tensor& tensor : tensors) parts.push_back(tensor.slice(0, begin, end));
      update.run(parts, step);
      begin = end;
    }
  }
  return tensors;
}

TEST(Updates, AreBitwiseTheSameForAnySplit) {
  const int before = at::get_num_threads();
  for (const Update& update : updates()) {
    const Tensors expected = updated(update, 1, {});
    for (const int threads : {1, 2, 3, 4}) {
      for (const std::vector<int64_t>& cuts :
           std::vector<std::vector<int64_t>>{{}, {1}, {3, 20, 16389, 16390}, {35001}, {69985, 69999}}) {
        const Tensors found = updated(update, threads, cuts);
        for (size_t i = 0; i < 4; ++i) {
          EXPECT_TRUE(at::equal(found[i], expected[i]))
              << update.name << ", tensor " << i << ", " << threads << " threads, " << cuts.size() << " cuts";
        }
      }
    }
  }
  at::set_num_threads(before);
}

// The formula number by number, without vectors and in float64.
TEST(Updates, OfAdamwAreTheFormulas) {
  const Tensors found = updated(updates()[0], 1, {});
  at::manual_seed(6);
  at::Tensor p = at::randn({kNumbers}).to(at::kDouble), m = at::zeros_like(p), v = at::zeros_like(p);
  for (int step = 1; step <= 2; ++step) {
    const at::Tensor g = at::randn({kNumbers}).to(at::kDouble) * 0.7;
    m = m * 0.9 + g * 0.1;
    v = v * 0.98 + g * g * 0.02;
    p = p * (1 - 1e-2 * 0.1) -
        1e-2 * (m / (1 - std::pow(0.9, step))) / ((v / (1 - std::pow(0.98, step))).sqrt() + 1e-8);
  }
  EXPECT_LT((found[0].to(at::kDouble) - p).abs().max().item<double>(), 1e-6);
}

/// One step from moments of zero. 1e-12 of a float32 gradient of 1 would be lost.
TEST(Updates, OfFloat64AreComputedInFloat64) {
  const double p = 0.5, g = 0.7 * (1 + 1e-12), lr = 1e-2, decay = 0.1;
  const auto number = [](double value) { return at::full({1}, value, at::kDouble); };
  const auto expect = [](const char* name, const at::Tensor& found, double expected) {
    EXPECT_NEAR(found.item<double>(), expected, 1e-15) << name;
  };
  at::Tensor parameter = number(p), moment = number(0), square = number(0);
  adamw(parameter, number(g / 0.7), moment, square, {lr, 0.9, 0.98, 1e-8, decay, 1, 0.7, false});
  expect("adamw", parameter, p * (1 - lr * decay) - lr * g / (g + 1e-8));
  expect("adamw's average", moment, 0.1 * g);
  expect("adamw's squares", square, 0.02 * g * g);
  parameter = number(p);
  sgd(parameter, number(g / 0.7), {}, {lr, 0, decay, false, 0.7});
  expect("sgd", parameter, p - lr * (g + decay * p));
  parameter = number(p);
  moment = number(0);
  lion(parameter, number(g / 0.7), moment, {lr, 0.9, 0.99, decay, 0.7});
  expect("lion", parameter, p * (1 - lr * decay) - lr);
  expect("lion's average", moment, 0.01 * g);
  at::Tensor average = number(p);
  move_average(average, number(g), 0.9);
  expect("move_average", average, p + 0.1 * (g - p));
}

TEST(SquareSum, IsThatOfTheFormulaWithTheSameBitsOnAnyThreads) {
  at::manual_seed(6);
  const int threads = at::get_num_threads();
  for (const int64_t count : {0, 1, 63, 64, 65535, 65536, 300001}) {
    const at::Tensor t = 1 + at::randn({count});
    const double exact = t.to(at::kDouble).square().sum().item<double>();
    at::set_num_threads(1);
    const double found = square_sum(t).item<double>();
    EXPECT_NEAR(found, exact, 1e-6 * exact) << count;
    for (int n = 2; n <= 4; ++n) {
      at::set_num_threads(n);
      EXPECT_EQ(square_sum(t).item<double>(), found) << count << " on " << n;
    }
  }
  at::set_num_threads(threads);
  const at::Tensor nan = at::full({100}, std::numeric_limits<double>::quiet_NaN(), at::kFloat);
  EXPECT_TRUE(std::isnan(square_sum(nan).item<double>()));
}

TEST(SquareSum, OfSeveralTensorsIsTheirSum) {
  at::manual_seed(4);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Tensors list = {at::randn({7}).to(dtype), (at::randn({70001}) * 3).to(dtype),
                          at::randn({40, 3}).to(dtype)};
    double expected = 0;
    for (const at::Tensor& t : list) expected += t.to(at::kDouble).square().sum().item<double>();
    const auto expect_sum = [&] {
      const at::Tensor found = square_sum(list);
      EXPECT_EQ(found.scalar_type(), at::kDouble);
      EXPECT_EQ(found.dim(), 0);
      EXPECT_NEAR(found.item<double>(), expected, 1e-5 * expected);
    };
    expect_sum();
    const WithoutKernels foreign;
    expect_sum();
    EXPECT_TRUE(square_sum(Tensors{list[0].to(at::kMeta), list[2].to(at::kMeta)}).is_meta());
    list[1][5] = INFINITY;
    EXPECT_EQ(square_sum(list).item<double>(), INFINITY);
  }
}

TEST(SquareSum, OfAnyDtypeAndShapeIsAFloat64Scalar) {
  at::manual_seed(6);
  for (const auto dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    const at::Tensor t = (300 * at::randn({7, 2, 30})).to(dtype).select(1, 1).requires_grad_();
    const double exact = t.detach().to(at::kDouble).square().sum().item<double>();  // beyond half's numbers
    const at::Tensor found = square_sum(t);
    EXPECT_EQ(found.scalar_type(), at::kDouble);
    EXPECT_EQ(found.dim(), 0);
    EXPECT_FALSE(found.requires_grad());
    EXPECT_NEAR(found.item<double>(), exact, 1e-6 * exact) << dtype;
  }
}

// The copy in bf16 that AdamW makes on the way, of numbers that round up, down, and to even, and of those
// that have no nearest one.
TEST(Updates, AdamwsCopyIsTheParameterRounded) {
  at::manual_seed(8);
  at::Tensor parameter = at::randn({kNumbers});
  parameter.slice(0, 0, 1000) *= 1e-39;  // denormal
  const at::Tensor halfway = parameter.slice(0, 1000, 3000).view(at::kInt);
  halfway.bitwise_and_(static_cast<int64_t>(0xFFFF0000)).bitwise_or_(0x8000);
  parameter[5] = std::numeric_limits<float>::infinity();
  parameter[6] = std::numeric_limits<float>::max();
  parameter[7] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor zeros = at::zeros({kNumbers});
  at::Tensor copy = at::empty({kNumbers}, at::kBFloat16);
  adamw(parameter, zeros, zeros.clone(), zeros.clone(), {0.0, 0.9, 0.98, 1e-8, 0.0, 1, 1.0, false}, copy);
  const at::Tensor rounded = parameter.to(at::kBFloat16);
  EXPECT_TRUE(copy[7].isnan().item<bool>());
  copy[7] = rounded[7] = 0;
  EXPECT_TRUE(at::equal(copy.view(at::kShort), rounded.view(at::kShort)));
}

// What widening makes of them, on the way or before.
TEST(Updates, OfABf16GradientAreThoseOfTheSameNumbers) {
  at::manual_seed(9);
  const at::Tensor gradient = at::randn({kNumbers}).to(at::kBFloat16), start = at::randn({kNumbers});
  EXPECT_EQ(square_sum(gradient).item<double>(), square_sum(gradient.to(at::kFloat)).item<double>());
  const auto after = [&](const at::Tensor& given, bool coupled) {
    Tensors t = {start.clone(), at::zeros({kNumbers}), at::zeros({kNumbers}),
                 at::empty({kNumbers}, at::kBFloat16)};
    for (int64_t step = 1; step <= 2; ++step) {
      adamw(t[0], given, t[1], t[2], {1e-2, 0.9, 0.98, 1e-8, 0.1, step, 0.7, coupled}, t[3]);
    }
    return t;
  };
  for (const bool coupled : {false, true}) {
    const Tensors found = after(gradient, coupled), expected = after(gradient.to(at::kFloat), coupled);
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i].equal(expected[i])) << i << coupled;
  }
}

// U V^T of the singular value decomposition, but for singular values that the iteration leaves between about
// 0.7 and 1.2; in bf16 also but for its rounding.
TEST(Orthogonalised, HasTheSingularVectorsOfTheMatrixInEitherDtype) {
  at::manual_seed(5);
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{{96, 32}, {32, 96}, {7, 50}}) {
    const at::Tensor matrix = at::randn({rows, columns}) * 1e-3;
    const auto [u, sizes, vt] = at::linalg_svd(matrix.to(at::kDouble), /*full_matrices=*/false);
    for (const auto compute : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(::testing::Message() << rows << ' ' << columns << ' ' << compute);
      const at::Tensor found = orthogonalised(matrix, compute);
      EXPECT_EQ(found.scalar_type(), at::kFloat);
      EXPECT_TRUE(found.is_contiguous());
      const at::Tensor core = u.t().mm(found.to(at::kDouble)).mm(vt.t()), values = core.diag();
      EXPECT_GT(values.min().item<double>(), 0.6);
      EXPECT_LT(values.max().item<double>(), 1.3);
      const double rounding = compute == at::kFloat ? 1e-4 : 5e-2;
      EXPECT_LT((core - values.diag()).abs().max().item<double>(), rounding);
      EXPECT_LT((u.mm(core).mm(vt) - found).abs().max().item<double>(), rounding);
    }
  }
}

TEST(Orthogonalised, ComputesInBf16OnAGpuAlone) {
  EXPECT_EQ(orthogonalise_dtype(at::kCPU, at::kFloat), at::kFloat);
  EXPECT_EQ(orthogonalise_dtype(at::Device(at::kCUDA, 0), at::kFloat), at::kBFloat16);
  EXPECT_EQ(orthogonalise_dtype(at::Device(at::kCUDA, 0), at::kDouble), at::kDouble);
}

}  // namespace
}  // namespace tessera::ops
