// Matrix products of every set of instructions, without LibTorch: beside the plain formula in float64, with
// sizes that are no multiple of anything, in memory that ends where it may not be touched.
#include <thread>

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

// One of each, less and more than a register has, than a block, than a cut, than a piece.
constexpr Size kSizes[] = {{1, 1, 1},    {7, 3, 5},      {6, 16, 16},   {13, 33, 31},  {50, 197, 47},
                           {33, 40, 97}, {100, 64, 192}, {9, 1700, 17}, {35, 2600, 33}};

std::vector<double> values(const auto& elements) {
  std::vector<double> all;
  for (int64_t i = 0; i < elements.size(); ++i) all.push_back(value(elements[i]));
  return all;
}

// left [rows, k] right [k, columns]; either may be given as its transpose.
std::vector<double> product(const Size& size, const std::vector<double>& left, bool left_transposed,
                            const std::vector<double>& right, bool right_transposed) {
  std::vector<double> result;
  for (int64_t row = 0; row < size.rows; ++row) {
    for (int64_t column = 0; column < size.columns; ++column) {
      double sum = 0;
      for (int64_t k = 0; k < size.k; ++k) {
        sum += left[static_cast<size_t>(left_transposed ? k * size.rows + row : row * size.k + k)] *
               right[static_cast<size_t>(right_transposed ? column * size.k + k : k * size.columns + column)];
      }
      result.push_back(sum);
    }
  }
  return result;
}

template <typename Gemm>
class KernelProducts : public testing::Test {
 protected:
  using T = typename Gemm::Element;
  using Packed = typename Gemm::PackedElement;

  void SetUp() override {
    if (const char* why = obstacle_to(Gemm())) GTEST_SKIP() << why;
  }

  // body(turns) on so many threads.
  template <typename Body>
  static void in_turns(int64_t threads, int64_t columns, const Body& body) {
    std::vector<int64_t> taken(static_cast<size_t>(Gemm::chunks(columns)));
    const vectors::Turns turns{threads, taken.data()};
    std::vector<std::jthread> others;
    for (int64_t i = 1; i < threads; ++i) others.emplace_back([&] { body(turns); });
    body(turns);
  }

  static void multiply(const Guarded<T>& a, const Size& size, const Guarded<Packed>& packed,
                       const Epilogue<T>& epilogue, int64_t threads = 1) {
    if constexpr (Gemm::kCutsOutside) {
      auto sums = aligned<float>(Gemm::sums_size(size.rows, size.columns));
      const int64_t depth = Gemm::piece_of(size.k);
      for (int64_t begin = 0; begin < size.k; begin += depth) {
        const typename Gemm::Cut cut{begin, std::min(depth, size.k - begin), size.k};
        in_turns(threads, size.columns, [&](const vectors::Turns& turns) {
          Gemm::multiply_cut(a.data(), size.rows, cut, packed.data(), size.columns, epilogue, sums.data(),
                             turns);
        });
      }
    } else {
      in_turns(threads, size.columns, [&](const vectors::Turns& turns) {
        Gemm::multiply(a.data(), size.rows, size.k, packed.data(), size.columns, epilogue, turns);
      });
    }
  }

  // A layer's input and weight, the weight packed for the product with its transpose.
  struct Layer {
    Guarded<T> x, weight;
    Guarded<Packed> packed;

    explicit Layer(const Size& size)
        : x(size.rows * size.k),
          weight(size.columns * size.k),
          packed(Gemm::packed_size(size.k, size.columns), 64) {
      fill(x, 1, 1);
      fill(weight, 1 / std::sqrt(size.k), 2);
      Gemm::pack_transposed(weight.data(), size.columns, size.k, 0, (size.columns + 31) / 32, packed.data());
    }
    std::vector<double> product_of(const Size& size) const {
      return product(size, values(x), false, values(weight), true);
    }
  };
};

using Gemms = testing::Types<vectors::Gemm<Avx2, float>, vectors::Gemm<Avx2, uint16_t, float>,
                             vectors::Gemm<Avx512, float>, vectors::Gemm<Avx512, uint16_t, float>,
                             vectors::Gemm<Avx512, uint16_t>, amx::Gemm>;
TYPED_TEST_SUITE(KernelProducts, Gemms);

TYPED_TEST(KernelProducts, OfRowsWithBiasAndResidual) {
  using T = typename TypeParam::Element;
  for (const Size& size : kSizes) {
    const typename TestFixture::Layer layer(size);
    Guarded<T> bias(size.columns), residual(size.rows * size.columns), out(size.rows * size.columns);
    fill(bias, 1, 3);
    fill(residual, 1, 4);
    TestFixture::multiply(layer.x, size, layer.packed,
                          {.out = out.data(), .bias = bias.data(), .residual = residual.data()});
    std::vector<double> exact = layer.product_of(size);
    for (int64_t i = 0; i < out.size(); ++i) {
      exact[static_cast<size_t>(i)] += value(bias[i % size.columns]) + value(residual[i]);
    }
    expect_near(out, exact, "result");
  }
}

TYPED_TEST(KernelProducts, OfRowsWithGelu) {
  using T = typename TypeParam::Element;
  for (const Size& size : kSizes) {
    const typename TestFixture::Layer layer(size);
    Guarded<T> linear(size.rows * size.columns), out(size.rows * size.columns);
    TestFixture::multiply(layer.x, size, layer.packed, {.out = out.data(), .linear = linear.data()});
    expect_near(linear, layer.product_of(size), "before GELU");
    std::vector<double> exact = values(linear);
    for (double& one : exact) one = gelu(one);
    expect_near(out, exact, "after GELU");
  }
}

TYPED_TEST(KernelProducts, OfRowsBackThroughGelu) {
  using T = typename TypeParam::Element;
  using Packed = typename TypeParam::PackedElement;
  for (const Size& size : kSizes) {
    Guarded<T> gradient(size.rows * size.k), weight(size.k * size.columns);
    Guarded<T> before(size.rows * size.columns), out(size.rows * size.columns);
    fill(gradient, 1, 1);
    fill(weight, 1 / std::sqrt(size.k), 2);
    fill(before, 2, 3);
    Guarded<Packed> packed(TypeParam::packed_size(size.k, size.columns), 64);
    TypeParam::pack(weight.data(), size.k, size.columns, 0, TypeParam::depth(size.k) / 16, false,
                    packed.data());
    TestFixture::multiply(gradient, size, packed, {.out = out.data(), .slope_of = before.data()});
    std::vector<double> exact = product(size, values(gradient), false, values(weight), false);
    for (int64_t i = 0; i < out.size(); ++i) exact[static_cast<size_t>(i)] *= gelu_slope(value(before[i]));
    expect_near(out, exact, "gradient");
  }
}

// gradient^T x, and the sums of the gradient's columns; x as it is, or GELU of it as a T.
TYPED_TEST(KernelProducts, OfColumnsInPieces) {
  using T = typename TypeParam::Element;
  using Packed = typename TypeParam::PackedElement;
  for (const Size& size : kSizes) {
    for (const bool with_gelu : {false, true}) {
      Guarded<T> gradient(size.k * size.rows), x(size.k * size.columns), out(size.rows * size.columns);
      fill(gradient, 1 / std::sqrt(size.k), 1);
      fill(x, 1, 2);
      const int64_t depth = TypeParam::piece_of(size.k), blocks = TypeParam::kLeftBlock;
      Guarded<Packed> packed(TypeParam::packed_size(depth, size.columns), 64);
      Guarded<Packed> left(TypeParam::left_size(depth, size.rows), 64);
      auto waiting = aligned<float>(depth == size.k ? 0 : TypeParam::sums_size(size.rows, size.columns));
      Guarded<float> sums(size.rows);
      for (int64_t i = 0; i < size.rows; ++i) sums[i] = 0;
      for (int64_t begin = 0; begin < size.k; begin += depth) {
        const int64_t k = std::min(depth, size.k - begin);
        TypeParam::pack(x.data() + begin * size.columns, k, size.columns, 0, TypeParam::depth(k) / 16,
                        with_gelu, packed.data());
        TypeParam::pack_left(gradient.data() + begin * size.rows, size.rows, size.rows, k, 0,
                             (size.rows + blocks - 1) / blocks, left.data(), sums.data());
        TestFixture::in_turns(1, size.columns, [&](const vectors::Turns& turns) {
          TypeParam::multiply_packed(left.data(), size.rows, k, packed.data(), size.columns,
                                     {.out = out.data()}, {begin == 0, begin + k == size.k, waiting.data()},
                                     turns);
        });
      }
      std::vector<double> right = values(x);
      for (double& one : right) one = with_gelu ? value(nearest<T>(gelu(one))) : one;
      // Where GELU's error decides how it is rounded, a number of bf16 is the next.
      expect_near(out, product(size, values(gradient), true, right, false), "weight's gradient",
                  with_gelu && sizeof(T) == 2 ? 5e-3 : 2e-5);
      std::vector<double> of_columns(static_cast<size_t>(size.rows));
      for (int64_t i = 0; i < gradient.size(); ++i) {
        of_columns[static_cast<size_t>(i % size.rows)] += value(gradient[i]);
      }
      expect_near(sums, of_columns, "bias's gradient");
    }
  }
}

TYPED_TEST(KernelProducts, OfAnyNumberOfThreadsAreTheSameBits) {
  using T = typename TypeParam::Element;
  const Size size{301, 900, 130};
  const typename TestFixture::Layer layer(size);
  Guarded<T> alone(size.rows * size.columns), shared(size.rows * size.columns);
  TestFixture::multiply(layer.x, size, layer.packed, {.out = alone.data()});
  TestFixture::multiply(layer.x, size, layer.packed, {.out = shared.data()}, 3);
  EXPECT_EQ(std::memcmp(alone.data(), shared.data(), sizeof(T) * static_cast<size_t>(alone.size())), 0);
  expect_near(alone, layer.product_of(size), "result");
}

TYPED_TEST(KernelProducts, BackThroughGeluAlone) {
  using T = typename TypeParam::Element;
  for (const int64_t count : {1, 15, 16, 47, 1000}) {
    Guarded<T> gradient(count), linear(count), out(count);
    fill(gradient, 1, 1);
    fill(linear, 3, 2);
    TypeParam::gelu_backward(gradient.data(), linear.data(), out.data(), count);
    std::vector<double> exact = values(gradient);
    for (int64_t i = 0; i < count; ++i) exact[static_cast<size_t>(i)] *= gelu_slope(value(linear[i]));
    expect_near(out, exact, "gradient");
  }
}

}  // namespace
}  // namespace tessera::ops
