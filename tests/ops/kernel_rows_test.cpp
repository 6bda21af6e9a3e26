// SPDX-License-Identifier: Apache-2.0
// Norms, few-query attention and functions of every set of instructions, without LibTorch: beside the plain
// formulas in float64, with sizes that are no multiple of anything, in memory that ends where it may not be
// touched.
#include "tessera/ops/cpu/vector_batch_norm.h"
#include "tessera/ops/cpu/vector_few_query.h"
#include "tessera/ops/cpu/vector_norm.h"
#include "tests/ops/softmax_formula.h"
#include "tests/ops/vector_functions.h"

namespace tessera::ops {
namespace {

using vectors::Avx2, vectors::Avx512;

/// A set, and the elements in memory.
template <typename SetOf, typename Element>
struct On {
  using Set = SetOf;
  using T = Element;
};

template <typename Kind>
class KernelRows : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* why = obstacle(typename Kind::Set())) GTEST_SKIP() << why;
  }
};
using Kinds = testing::Types<On<Avx2, float>, On<Avx2, uint16_t>, On<Avx512, float>, On<Avx512, uint16_t>>;
TYPED_TEST_SUITE(KernelRows, Kinds);

TYPED_TEST(KernelRows, LayerNorm) {
  using T = typename TypeParam::T;
  using Norm = vectors::LayerNormRows<typename TypeParam::Set, T>;
  constexpr int64_t kRows = 5;
  for (const int64_t width : {2, 15, 16, 33, 100, 768}) {
    Guarded<T> x(kRows * width), weight(width), bias(width), y(kRows * width), gradient(kRows * width),
        more(kRows * width), dx(kRows * width), dx_with_more(kRows * width);
    Guarded<float> stats(kRows * 2), weight_sums(width), bias_sums(width);
    fill(x, 2, 1);
    fill(weight, 1, 2);
    fill(bias, 1, 3);
    fill(gradient, 1, 4);
    fill(more, 1, 5);
    std::fill_n(weight_sums.data(), width, 0.0F);
    std::fill_n(bias_sums.data(), width, 0.0F);
    Norm::forward(x.data(), kRows, width, weight.data(), bias.data(), 1e-3F, y.data(), stats.data());
    Norm::backward(gradient.data(), nullptr, x.data(), kRows, width, weight.data(), stats.data(), dx.data(),
                   weight_sums.data(), bias_sums.data());
    Norm::backward(gradient.data(), more.data(), x.data(), kRows, width, weight.data(), stats.data(),
                   dx_with_more.data(), weight_sums.data(), bias_sums.data());

    Exact of_y = zeros(kRows * width), of_x = of_y, of_x_with_more = of_y, of_weight = zeros(width),
          of_bias = of_weight;
    for (int64_t row = 0; row < kRows; ++row) {
      const int64_t first = row * width;
      const auto divided = static_cast<double>(width);
      double mean = 0, variance = 0, slope = 0, along = 0;
      for (int64_t i = first; i < first + width; ++i) mean += value(x[i]) / divided;
      for (int64_t i = first; i < first + width; ++i) variance += std::pow(value(x[i]) - mean, 2) / divided;
      const double rstd = 1 / std::sqrt(variance + 1e-3);
      for (int64_t c = 0; c < width; ++c) {
        const double normed = (value(x[first + c]) - mean) * rstd, g = value(gradient[first + c]);
        at(of_y, first + c) = normed * value(weight[c]) + value(bias[c]);
        at(of_weight, c) += 2 * g * normed;  // backward came twice
        at(of_bias, c) += 2 * g;
        slope += g * value(weight[c]) / divided;
        along += g * value(weight[c]) * normed / divided;
      }
      for (int64_t c = 0; c < width; ++c) {
        const double normed = (value(x[first + c]) - mean) * rstd;
        const double own = rstd * (value(gradient[first + c]) * value(weight[c]) - slope - normed * along);
        at(of_x, first + c) = own;
        at(of_x_with_more, first + c) = own + value(more[first + c]);
      }
    }
    expect_near(y, of_y, "result");
    expect_near(dx, of_x, "gradient");
    expect_near(dx_with_more, of_x_with_more, "gradient and more");
    expect_near(weight_sums, of_weight, "weight's gradient");
    expect_near(bias_sums, of_bias, "bias's gradient");
  }
}

TYPED_TEST(KernelRows, BatchNorm) {
  using T = typename TypeParam::T;
  using Norm = vectors::BatchNormRows<typename TypeParam::Set, T>;
  constexpr int64_t kShapes[][2] = {{1, 1}, {7, 5}, {40, 33}, {100, 48}, {65, 16}};
  for (const auto& [rows, channels] : kShapes) {
    for (const bool past_caches : {false, true}) {
      if (past_caches && channels % 16 != 0) continue;
      const int64_t count = rows * channels, words = vectors::mask_words(channels);
      const size_t alignment = past_caches ? 64 : sizeof(T);
      Guarded<T> x(count), residual(count), gradient(count), y(count, alignment), dx(count, alignment),
          of_residual(count, alignment);
      Guarded<float> mean(channels), scale(channels), shift(channels), moments(3 * channels),
          sums(2 * channels);
      Guarded<uint16_t> mask(rows * words);
      fill(x, 2, 1);
      fill(residual, 1, 2);
      fill(gradient, 1, 3);
      fill(mean, 1, 4);
      fill(scale, 1, 5);
      fill(shift, 1, 6);
      Norm::moments(x.data(), 0, rows, channels, moments.data());
      Norm::forward({x.data(), residual.data(), mean.data(), scale.data(), shift.data(), y.data(), true,
                     mask.data(), past_caches},
                    0, rows, channels);
      const vectors::BatchNormBackward<T> back{gradient.data(),    mask.data(),  x.data(),     mean.data(),
                                               scale.data(),       shift.data(), shift.data(), dx.data(),
                                               of_residual.data(), past_caches};
      Norm::backward_sums(back, 0, rows, channels, sums.data());
      Norm::backward(back, 0, rows, channels);

      Exact exact_y = zeros(count), exact_dx = exact_y, exact_residual = exact_y,
            exact_sums = zeros(2 * channels), sum = zeros(channels), squares = sum;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t c = i % channels;
        const double from_mean = value(x[i]) - mean[c];
        const double plain = from_mean * scale[c] + shift[c] + value(residual[i]);
        at(exact_y, i) = std::max(plain, 0.0);
        const bool passed = (mask[i / channels * words + c / 16] >> (c % 16) & 1) != 0;
        EXPECT_TRUE(passed == (plain > 0) || std::abs(plain) < 1e-5) << "mask of " << i;
        const double g = passed ? value(gradient[i]) : 0;
        at(exact_residual, i) = g;
        at(exact_dx, i) = g * scale[c] + from_mean * shift[c] + shift[c];
        at(exact_sums, c) += g;
        at(exact_sums, channels + c) += g * from_mean;
        at(sum, c) += value(x[i]);
        at(squares, c) += value(x[i]) * value(x[i]);
      }
      expect_near(y, exact_y, "result");
      expect_near(dx, exact_dx, "gradient");
      expect_near(of_residual, exact_residual, "residual's gradient", 0);
      expect_near(sums, exact_sums, "sums", 1e-4);
      // moments: near, the sum of x - near, and of its square.
      for (int64_t c = 0; c < channels; ++c) {
        const double near = moments[c], deviations = moments[channels + c];
        const auto divided = static_cast<double>(rows);
        EXPECT_NEAR(near * divided + deviations, at(sum, c), 1e-4 * divided);
        EXPECT_NEAR(moments[2 * channels + c] + 2 * near * deviations + near * near * divided, at(squares, c),
                    1e-4 * divided);
      }
    }
  }
}

TYPED_TEST(KernelRows, FewQueryAttention) {
  using T = typename TypeParam::T;
  using Image = vectors::FewQueryImage<typename TypeParam::Set, T>;
  constexpr int64_t kShapes[][3] = {{1, 1, 1}, {3, 5, 7}, {7, 50, 16}, {12, 197, 40}};
  for (const auto& [rows, tokens, width] : kShapes) {
    const int64_t step = width + 3;  // of another image's rows
    const vectors::FewQueryShape shape{rows, tokens, width, step, 0.3F};
    const int64_t count = (rows - 1) * step + width;
    Guarded<T> x(tokens * width), u(count), z(count), dz(count), du(count), dx(tokens * width);
    Guarded<float> p(rows * tokens);
    auto scratch = aligned<float>(shape.scratch());
    fill(x, 1, 1);
    fill(u, 1, 2);
    fill(dz, 1, 3);
    Image::forward(x.data(), u.data(), shape, p.data(), z.data(), scratch.data());
    Image::backward(x.data(), u.data(), dz.data(), p.data(), shape, du.data(), dx.data(), scratch.data());

    const auto of = [](const Guarded<T>& rows_of, int64_t row_step) {
      return [&rows_of, row_step](int64_t i, int64_t c) { return value(rows_of[i * row_step + c]); };
    };
    const auto token = of(x, width), query = of(u, step), gradient = of(dz, step);
    Softmax softmax(rows, tokens, width, 0.3, query, token);
    expect_near(p, softmax.p, "softmax");
    const Exact ds = softmax.backward([&, width = width](int64_t i, int64_t j) {
      double sum = 0;
      for (int64_t c = 0; c < width; ++c) sum += gradient(i, c) * token(j, c);
      return sum;
    });
    // (Rows of other images keep what they had.)
    Exact of_z, of_u, of_x = zeros(tokens * width);
    Guarded<T> found_z(rows * width), found_du(rows * width);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t c = 0; c < width; ++c) {
        double sum = 0;
        for (int64_t j = 0; j < tokens; ++j) {
          const double share = ds[static_cast<size_t>(i * tokens + j)] * 0.3;
          sum += share * token(j, c);
          at(of_x, j * width + c) += share * query(i, c) + at(softmax.p, i * tokens + j) * gradient(i, c);
        }
        of_z.push_back(softmax.mix(i, c, token));
        of_u.push_back(sum);
        found_z[i * width + c] = z[i * step + c];
        found_du[i * width + c] = du[i * step + c];
      }
      for (int64_t gap = i * step + width; gap < std::min((i + 1) * step, count); ++gap) {
        EXPECT_TRUE(std::isnan(value(z[gap])) && std::isnan(value(du[gap]))) << "written between rows";
      }
    }
    expect_near(found_z, of_z, "result");
    expect_near(found_du, of_u, "query's gradient", 1e-4);
    expect_near(dx, of_x, "tokens' gradient", 1e-4);
  }
}

template <typename SetOf>
class VectorFunctions : public KernelRows<On<SetOf, float>> {
 protected:
  static float of(vectors::Function function, float x) {
    Guarded<float> all(16), result(16);
    std::fill_n(all.data(), 16, x);
    std::fill_n(result.data(), 16, 1.0F);
    function(all.data(), result.data());
    for (int64_t lane = 1; lane < 16; ++lane) {
      EXPECT_EQ(std::bit_cast<uint32_t>(result[lane]), std::bit_cast<uint32_t>(result[0])) << "lane " << lane;
    }
    return result[0];
  }
};
using Sets = testing::Types<Avx2, Avx512>;
TYPED_TEST_SUITE(VectorFunctions, Sets);

TYPED_TEST(VectorFunctions, AreAsNearAsTheySay) {
  using F = vectors::Functions<TypeParam>;
  for (float x = -80; x < 80; x += 0.37F) {
    const double exact = std::exp(static_cast<double>(x)), to_two = std::exp2(static_cast<double>(x));
    EXPECT_NEAR(this->of(F::exp, x) / exact, 1, 3e-6 + 6e-8 * std::abs(x)) << x;
    EXPECT_NEAR(this->of(F::precise_exp, x) / exact, 1, 1.5e-7) << x;
    EXPECT_NEAR(this->of(F::exp2_for_bf16, x) / to_two, 1, 9e-5) << x;
    EXPECT_NEAR(this->of(F::reciprocal, x) * static_cast<double>(x), 1, 1.2e-7) << x;
    EXPECT_NEAR(this->of(F::gelu, x), gelu(x), 3e-7 * std::max(std::abs(x), 1.0F)) << x;
    EXPECT_NEAR(this->of(F::gelu_derivative, x), gelu_slope(x), 1e-6) << x;
  }
}

TYPED_TEST(VectorFunctions, TooLargeIsInfiniteTooSmallZeroAndNaNStays) {
  using F = vectors::Functions<TypeParam>;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr auto kNan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(this->of(F::times_power, 127), std::ldexp(1.0F, 127));
  EXPECT_EQ(this->of(F::times_power, -126), std::ldexp(1.0F, -126));
  for (const float x : {128.0F, 200.0F, 300.0F, 1e10F, kInfinity}) {
    EXPECT_EQ(this->of(F::times_power, x), kInfinity) << x;
    EXPECT_EQ(this->of(F::times_power, -x), 0.0F) << x;
  }
  for (const auto exponential : {F::exp, F::precise_exp, F::exp2_for_bf16}) {
    EXPECT_EQ(this->of(exponential, 300), kInfinity);
    EXPECT_EQ(this->of(exponential, -300), 0.0F);
    EXPECT_TRUE(std::isnan(this->of(exponential, kNan)));
  }
  EXPECT_TRUE(std::isnan(this->of(F::gelu, kNan)));
  EXPECT_TRUE(std::isnan(this->of(F::gelu_derivative, kNan)));
}

// A CPU's own estimate of a reciprocal has other bits on another maker's.
TEST(VectorFunctionsOfAvx2, ReciprocalIsRoundedLikeADivision) {
  if (const char* why = obstacle(Avx2())) GTEST_SKIP() << why;
  Guarded<float> x(16), y(16);
  for (unsigned seed = 1; seed < 100; ++seed) {
    fill(x, 10, seed);
    vectors::Functions<Avx2>::reciprocal(x.data(), y.data());
    for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(y[i], 1.0F / x[i]);
  }
}

}  // namespace
}  // namespace tessera::ops
