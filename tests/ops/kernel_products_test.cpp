// SPDX-License-Identifier: Apache-2.0
// Products of linear layers of every set of instructions, without LibTorch: beside the plain formula in
// float64, with sizes that are no multiple of anything, in memory that ends where it may not be touched.
#include "tessera/ops/cpu/kernel_products.h"

#include <thread>
#include <tuple>

#include "tests/ops/guarded.h"

namespace tessera::ops {
namespace {

using vectors::Avx2, vectors::Avx512;

template <typename Set, typename T, typename Packed>
const char* obstacle_to(vectors::Gemm<Set, T, Packed>) {
  return obstacle(Set(), sizeof(Packed) == 2);
}
const char* obstacle_to(amx::Gemm) { return obstacle_to_tiles(); }

struct Size {
  int64_t rows, k, columns;
};

// One of each, less and more than a register has, than a block, than a cut, than a piece, than a group.
constexpr Size kSizes[] = {{1, 1, 1},    {7, 3, 5},      {6, 16, 16},   {13, 33, 31},   {50, 197, 47},
                           {33, 40, 97}, {100, 64, 192}, {9, 1700, 17}, {35, 2600, 33}, {300, 1700, 21}};

// Memory that ends where it may not be touched. So few sums may wait that products come in groups.
struct TestRuntime {
  static constexpr int64_t kMostSums = 256 * 20, kMostRowSums = 256 * 20;
  static inline int64_t thread_count = 1;

  template <typename E>
  class Scratch {
   public:
    explicit Scratch(int64_t elements) : memory_(elements, 64) {}
    E* data() const { return memory_.data(); }

   private:
    mutable Guarded<E> memory_;
  };
  template <typename E>
  static Scratch<E> scratch(int64_t elements) {
    return Scratch<E>(elements);
  }
  static int64_t threads() { return thread_count; }
  template <typename Body>
  static void parallel(int64_t begin, int64_t end, int64_t /*grain*/, const Body& body) {
    const int64_t parts = std::max<int64_t>(std::min(thread_count, end - begin), 1);
    const auto part = [=](int64_t i) { return begin + (end - begin) * i / parts; };
    std::vector<std::jthread> others;
    for (int64_t i = 1; i < parts; ++i) others.emplace_back([&, i] { body(part(i), part(i + 1)); });
    body(part(0), part(1));
  }
};

Exact values(const auto& elements) {
  Exact all;
  for (int64_t i = 0; i < elements.size(); ++i) all.push_back(value(elements[i]));
  return all;
}

// left [rows, k] right [k, columns]; either may be given as its transpose.
Exact product(const Size& size, const Exact& left, bool left_transposed, const Exact& right,
              bool right_transposed) {
  Exact result;
  for (int64_t row = 0; row < size.rows; ++row) {
    for (int64_t column = 0; column < size.columns; ++column) {
      double sum = 0;
      for (int64_t k = 0; k < size.k; ++k) {
        sum += at(left, left_transposed ? k * size.rows + row : row * size.k + k) *
               at(right, right_transposed ? column * size.k + k : k * size.columns + column);
      }
      result.push_back(sum);
    }
  }
  return result;
}

template <typename Gemm>
class ProductsOf : public ::testing::Test {
 protected:
  using Products = KernelProducts<Gemm, TestRuntime>;
  using T = typename Gemm::Element;

  void SetUp() override {
    if (const char* why = obstacle_to(Gemm())) GTEST_SKIP() << why;
  }
};
#ifdef TESSERA_TILES_IN_MEMORY
using Gemms = testing::Types<amx::Gemm>;
#else
using Gemms = testing::Types<vectors::Gemm<Avx2, float>, vectors::Gemm<Avx2, uint16_t, float>,
                             vectors::Gemm<Avx512, float>, vectors::Gemm<Avx512, uint16_t, float>,
                             vectors::Gemm<Avx512, uint16_t>, amx::Gemm>;
#endif
TYPED_TEST_SUITE(ProductsOf, Gemms);

/// A layer: x [rows, k], weight [columns, k].
template <typename T>
struct Layer {
  Guarded<T> x, weight;

  explicit Layer(const Size& size) : x(size.rows * size.k), weight(size.columns * size.k) {
    fill(x, 1, 1);
    fill(weight, 1 / std::sqrt(size.k), 2);
  }
  template <typename Products>
  void forward(Products, const Size& size, const Epilogue<T>& epilogue) const {
    Products::forward(x.data(), weight.data(), size.rows, size.k, size.columns, epilogue);
  }
  Exact product_of(const Size& size) const { return product(size, values(x), false, values(weight), true); }
};

TYPED_TEST(ProductsOf, RowsWithBiasAndResidual) {
  using T = typename TestFixture::T;
  for (const Size& size : kSizes) {
    const Layer<T> layer(size);
    Guarded<T> bias(size.columns), residual(size.rows * size.columns), out(size.rows * size.columns);
    fill(bias, 1, 3);
    fill(residual, 1, 4);
    layer.forward(typename TestFixture::Products(), size,
                  {.out = out.data(), .bias = bias.data(), .residual = residual.data()});
    Exact exact = layer.product_of(size);
    for (int64_t i = 0; i < out.size(); ++i) {
      at(exact, i) += value(bias[i % size.columns]) + value(residual[i]);
    }
    expect_near(out, exact, "result");
  }
}

TYPED_TEST(ProductsOf, RowsThroughGelu) {
  using T = typename TestFixture::T;
  for (const Size& size : kSizes) {
    const Layer<T> layer(size);
    Guarded<T> linear(size.rows * size.columns), out(size.rows * size.columns);
    layer.forward(typename TestFixture::Products(), size, {.out = out.data(), .linear = linear.data()});
    expect_near(linear, layer.product_of(size), "before GELU");
    Exact exact = values(linear);
    for (double& one : exact) one = gelu(one);
    expect_near(out, exact, "after GELU");
  }
}

// Of bf16 every one; NaN stays NaN.
TYPED_TEST(ProductsOf, GeluOfNumbersOfAllSizes) {
  using T = typename TestFixture::T;
  const Size size{1 << 16, 1, 1};
  Guarded<T> x(size.rows), one(1), linear(size.rows), out(size.rows);
  one[0] = nearest<T>(1);
  Exact exact;
  for (int64_t i = 0; i < size.rows; ++i) {
    const float number = std::bit_cast<float>(static_cast<uint32_t>(i) << 16);
    x[i] = nearest<T>(std::isfinite(number) ? number : 0);
    exact.push_back(gelu(value(x[i])));
  }
  TestFixture::Products::forward(x.data(), one.data(), size.rows, 1, 1,
                                 {.out = out.data(), .linear = linear.data()});
  expect_near(out, exact, "after GELU", 3e-6);
  x[7] = nearest<T>(std::numeric_limits<double>::quiet_NaN());
  TestFixture::Products::forward(x.data(), one.data(), 9, 1, 1, {.out = out.data(), .linear = linear.data()});
  EXPECT_TRUE(std::isnan(value(out[7])) && !std::isnan(value(out[6])) && !std::isnan(value(out[8])));
}

TYPED_TEST(ProductsOf, RowsBackThroughGelu) {
  using T = typename TestFixture::T;
  for (const Size& size : kSizes) {
    Guarded<T> gradient(size.rows * size.k), weight(size.k * size.columns);
    Guarded<T> before(size.rows * size.columns), out(size.rows * size.columns);
    fill(gradient, 1, 1);
    fill(weight, 1 / std::sqrt(size.k), 2);
    fill(before, 2, 3);
    TestFixture::Products::input_gradient(gradient.data(), weight.data(), size.rows, size.columns, size.k,
                                          {.out = out.data(), .slope_of = before.data()});
    Exact exact = product(size, values(gradient), false, values(weight), false);
    for (int64_t i = 0; i < out.size(); ++i) at(exact, i) *= gelu_slope(value(before[i]));
    expect_near(out, exact, "gradient");
  }
}

// gradient^T x, and the sums of the gradient's columns; x as it is, or GELU of it as a T.
TYPED_TEST(ProductsOf, WeightsGradient) {
  using T = typename TestFixture::T;
  for (const Size& size : kSizes) {
    for (const bool with_gelu : {false, true}) {
      Guarded<T> gradient(size.k * size.rows), x(size.k * size.columns), out(size.rows * size.columns);
      Guarded<float> sums(size.rows);
      fill(gradient, 1 / std::sqrt(size.k), 1);
      fill(x, 1, 2);
      TestFixture::Products::weight_gradient(gradient.data(), x.data(), with_gelu, size.k, size.columns,
                                             size.rows, out.data(), sums.data());
      Exact right = values(x);
      for (double& one : right) one = with_gelu ? value(nearest<T>(gelu(one))) : one;
      // Where GELU's error decides how it is rounded, a number of bf16 is the next.
      expect_near(out, product(size, values(gradient), true, right, false), "weight's gradient",
                  with_gelu && sizeof(T) == 2 ? 5e-3 : 2e-5);
      Exact of_columns = zeros(size.rows);
      for (int64_t i = 0; i < gradient.size(); ++i) {
        at(of_columns, i % size.rows) += value(gradient[i]);
      }
      expect_near(sums, of_columns, "bias's gradient");
    }
  }
}

// A gradient whose rows come in several calls is rounded once, as of one call.
TYPED_TEST(ProductsOf, WeightsGradientOfRowsInParts) {
  using T = typename TestFixture::T;
  using Products = typename TestFixture::Products;
  for (const Size& size : kSizes) {
    if (size.k < 3) continue;
    Guarded<T> gradient(size.k * size.rows), x(size.k * size.columns), out(size.rows * size.columns);
    Guarded<float> sums(size.rows), waiting(Products::waiting_size(size.columns, size.rows));
    fill(gradient, 1 / std::sqrt(size.k), 1);
    fill(x, 1, 2);
    const int64_t cut = size.k / 3;
    for (const auto& [first, rows] :
         {std::pair<int64_t, int64_t>(0, cut), {cut, 1}, {cut + 1, size.k - cut - 1}}) {
      const RowsPart part{first == 0, first + rows == size.k, waiting.data()};
      Products::weight_gradient(gradient.data() + first * size.rows, x.data() + first * size.columns, false,
                                rows, size.columns, size.rows, out.data(), sums.data(), part);
    }
    expect_near(out, product(size, values(gradient), true, values(x), false), "weight's gradient", 2e-5);
    Exact of_columns = zeros(size.rows);
    for (int64_t i = 0; i < gradient.size(); ++i) at(of_columns, i % size.rows) += value(gradient[i]);
    expect_near(sums, of_columns, "bias's gradient");
  }
}

TYPED_TEST(ProductsOf, AnyThreadsAndAnyBatchAreTheSameBits) {
  using T = typename TestFixture::T;
  const Size size{301, 900, 130};
  const Layer<T> layer(size);
  const auto bytes = [](const auto& all) {
    return std::string(reinterpret_cast<const char*>(all.data()),
                       sizeof(all[0]) * static_cast<size_t>(all.size()));
  };
  const auto bits = [&](int64_t rows, int64_t threads) {
    TestRuntime::thread_count = threads;
    Guarded<T> out(rows * size.columns), weight_gradient(size.columns * size.k);
    Guarded<float> sums(size.columns);
    layer.forward(typename TestFixture::Products(), {rows, size.k, size.columns}, {.out = out.data()});
    TestFixture::Products::weight_gradient(out.data(), layer.x.data(), false, rows, size.k, size.columns,
                                           weight_gradient.data(), sums.data());
    TestRuntime::thread_count = 1;
    return std::tuple(bytes(out), bytes(weight_gradient), bytes(sums));
  };
  const auto alone = bits(size.rows, 1);
  EXPECT_EQ(bits(size.rows, 3), alone);
  EXPECT_TRUE(std::get<0>(alone).starts_with(std::get<0>(bits(17, 2))));
}

TYPED_TEST(ProductsOf, GradientBackThroughGeluAlone) {
  using T = typename TestFixture::T;
  for (const int64_t count : {1, 15, 16, 47, 1000}) {
    Guarded<T> gradient(count), linear(count), out(count);
    fill(gradient, 1, 1);
    fill(linear, 3, 2);
    TestFixture::Products::gelu_backward(gradient.data(), linear.data(), out.data(), count);
    Exact exact = values(gradient);
    for (int64_t i = 0; i < count; ++i) at(exact, i) *= gelu_slope(value(linear[i]));
    expect_near(out, exact, "gradient");
  }
}

}  // namespace
}  // namespace tessera::ops
