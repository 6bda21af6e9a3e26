// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/fp8_linear.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <bit>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/base/warn.h"
#include "tessera/device/kernels.h"
#include "tessera/ops/cpu/every_cpu.h"
#include "tessera/ops/device/fault.h"
#include "tessera/ops/device/linear.h"
#include "tessera/ops/fast_path.h"
#include "tessera/ops/kept_input.h"
#include "tessera/ops/linear.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The scale of a row as float32's biased exponent. The largest number of e4m3 is 1.75 * 2^8: a largest value
// of mantissa 1.75 has its own exponent less 8, one above has the next. With the least scale, 2^-124, all
// numbers are multiples of 2^-133, which bf16 has.
constexpr int32_t kRoundUp = 0x1FFFFF;  // added to a float's bits: counts the exponent up above 1.75
constexpr int32_t kMantissaBits = 23;
constexpr int32_t kLargestExponent = 8;
constexpr int32_t kLeastScale = 3;
constexpr uint32_t kInfinity = 0x7F800000;

// Normal numbers of e4m3 begin here; below they are multiples of 2^-9, float32's step at kWholeSteps.
constexpr auto kLeastNormal = std::bit_cast<uint32_t>(0x1p-6F);
constexpr float kWholeSteps = 0x1.8p14F;
constexpr uint32_t kDroppedBits = (1U << 20) - 1;  // of float32's mantissa, 3 bits of 23 stay

inline float wide(uint16_t bf16) { return std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16); }
inline float wide(float value) { return value; }

template <typename Number>
[[gnu::always_inline]] inline void round_row(const Number* __restrict row, int64_t n,
                                             uint16_t* __restrict rounded) {
  uint32_t largest = 0;  // as bits: above kInfinity is NaN
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(wide(row[i])) & 0x7FFFFFFFU);
  }
  if (largest >= kInfinity) {
    std::fill_n(rounded, n, uint16_t{0x7FC0});
    return;
  }
  const uint32_t up = (largest + static_cast<uint32_t>(kRoundUp)) >> kMantissaBits;
  const uint32_t exponent = std::max<uint32_t>(up, kLargestExponent + kLeastScale) - kLargestExponent;
  const auto scale = std::bit_cast<float>(exponent << kMantissaBits);
  const auto inverse = std::bit_cast<float>((254 - exponent) << kMantissaBits);
  for (int64_t i = 0; i < n; ++i) {
    const float q = wide(row[i]) * inverse;
    const auto bits = std::bit_cast<uint32_t>(q);
    const uint32_t even = (bits >> 20) & 1U;
    const uint32_t normal = (bits + (kDroppedBits >> 1) + even) & ~kDroppedBits;
    const auto small = std::bit_cast<uint32_t>((q + kWholeSteps) - kWholeSteps);
    // By a mask: a choice would be a branch, and no branch is in a loop of vectors.
    const uint32_t is_small = 0U - static_cast<uint32_t>((bits & 0x7FFFFFFFU) < kLeastNormal);
    const auto number = std::bit_cast<float>((small & is_small) | (normal & ~is_small));
    rounded[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(number * scale) >> 16);
  }
}

TESSERA_EVERY_CPU void round_bf16_row(const uint16_t* row, int64_t n, uint16_t* rounded) {
  round_row(row, n, rounded);
}

TESSERA_EVERY_CPU void round_float_row(const float* row, int64_t n, uint16_t* rounded) {
  round_row(row, n, rounded);
}

at::Tensor rounded_by_kernel(const at::Tensor& rows_given) {
  const at::Tensor rows = rows_given.contiguous();
  const int64_t columns = rows.size(1);
  at::Tensor rounded = at::empty(rows.sizes(), rows.options().dtype(at::kBFloat16));
  const bool narrow = rows.scalar_type() == at::kBFloat16;
  uint16_t* out = mutable_data_of<uint16_t>(rounded);
  at::parallel_for(0, rows.size(0), std::max<int64_t>(1, kGrain / columns), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * columns; i < end * columns; i += columns) {
      if (narrow) {
        round_bf16_row(data_of<uint16_t>(rows) + i, columns, out + i);
      } else {
        round_float_row(rows.const_data_ptr<float>() + i, columns, out + i);
      }
    }
  });
  return rounded;
}

int64_t rest_to_16(int64_t n) { return (16 - n % 16) % 16; }

Fp8Rows rows_by_libtorch(const at::Tensor& rows) {
  const at::Tensor most = rows.amax(1, /*keepdim=*/true), least = rows.amin(1, /*keepdim=*/true);
  const at::Tensor largest = at::maximum(most, least.neg()).to(at::kFloat).view(at::kInt);
  const at::Tensor exponent = largest.add(kRoundUp)
                                  .bitwise_right_shift(kMantissaBits)
                                  .clamp_min(kLargestExponent + kLeastScale)
                                  .sub(kLargestExponent);
  const at::Tensor scales = exponent.bitwise_left_shift(kMantissaBits).view(at::kFloat);
  return {(rows / scales).to(at::kFloat8_e4m3fn), scales};  // float32 in between
}

/// fp8_rows of these with so many more columns and rows of zeros.
Fp8Rows filled_rows(const at::Tensor& rows_given, int64_t more_columns, int64_t more_rows) {
  const device::DeviceKernels* kernels = device::kernels_for(rows_given, &device::DeviceKernels::fp8_rows);
  const auto number = device::number_of(rows_given);
  if (kernels == nullptr || !number) {
    const bool whole = more_columns == 0 && more_rows == 0;
    return rows_by_libtorch(whole ? rows_given
                                  : at::constant_pad_nd(rows_given, {0, more_columns, 0, more_rows}));
  }
  const at::Tensor rows = rows_given.contiguous();
  const int64_t filled_rows = rows.size(0) + more_rows, filled_columns = rows.size(1) + more_columns;
  const Fp8Rows result{
      at::empty({filled_rows, filled_columns}, rows.options().dtype(at::kFloat8_e4m3fn)),
      // LibTorch's product may read the scales of rows up to the next 256 (pytorch/pytorch#133334).
      at::empty({(filled_rows + 255) / 256 * 256, 1}, rows.options().dtype(at::kFloat))
          .narrow(0, 0, filled_rows)};
  kernels->fp8_rows({.number = *number,
                     .rows = rows.size(0),
                     .columns = rows.size(1),
                     .filled_rows = filled_rows,
                     .filled_columns = filled_columns,
                     .x = rows.const_data_ptr(),
                     .numbers = static_cast<uint8_t*>(result.numbers.mutable_data_ptr()),
                     .scales = result.scales.mutable_data_ptr<float>()},
                    device::KernelStream(*kernels, rows));
  return result;
}

/// Whether a product of factors in fp8 on the GPU is what the values in e4m3 stand for, but for the rounding
/// to bf16 and the order of sums; else a warning says how far it is off. 1,024 values a sum, so that
/// accumulators of few bits would show.
bool multiplies_fp8(at::Device device) {
  const at::NoGradGuard no_grad;
  const auto options = at::TensorOptions(device).dtype(at::kBFloat16);
  const at::Tensor left = test_values({40, 1024}, 0.7, options),
                   right = test_values({32, 1024}, 0.7, options), bias = test_values({32}, 2.1, options);
  const std::string found = said_or_thrown([&] {
    const at::Tensor expected = at::linear(fp8_rounded(left), fp8_rounded(right), bias);
    return differences({{"result", 0, scaled_product(left, right, bias)}}, {{"result", 0.01, expected}});
  });
  if (!found.empty()) {
    warn(concat("[ops.fp8_linear] fp8 products on the GPU: ", found,
                "; products in bf16 of the same values are used instead"));
  }
  return found.empty();
}

bool has_fp8_products(const at::Tensor& t) {
  if (!t.is_cuda()) return false;
  static const bool found = multiplies_fp8(t.device());  // a process computes on one GPU
  return found;
}

at::Tensor zeros_for(const at::Tensor& like, int64_t n) {
  return at::zeros({n}, like.options().dtype(at::kBFloat16));
}

at::Tensor product(const at::Tensor& left, const at::Tensor& right, const at::Tensor& bias) {
  if (has_fp8_products(left)) return scaled_product(left, right, bias);
  return linear(fp8_rounded(left), fp8_rounded(right),
                bias.defined() ? bias : zeros_for(left, right.size(0)));
}

/// The transpose of `gradient` [rows, out] times `x` [rows, in], in bf16.
at::Tensor weight_gradient(const at::Tensor& gradient, const at::Tensor& x) {
  const at::Tensor g = gradient.to(at::kBFloat16).t(), factor = x.to(at::kBFloat16);
  if (!is_for_kernels(g)) return at::mm(g, factor);
  return linear(g.contiguous(), factor.t().contiguous(), zeros_for(x, x.size(1)));
}

class Fp8Linear : public torch::autograd::Function<Fp8Linear> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, const RecomputeFrom& made, Use use) {
    const at::Tensor rows = as_rows(x);
    auto shape = x.sizes().vec();
    shape.back() = weight.size(0);
    save_with_input(ctx, {weight}, rows, made);
    ctx->saved_data["shape"] = x.sizes().vec();
    if (use == Use::kUnread) return at::empty(shape, x.options());
    RECORD_USER_SCOPE("tessera::fp8_linear");
    return product(rows, weight, bias.to(at::kBFloat16)).to(x.scalar_type()).view(shape);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    RECORD_USER_SCOPE("tessera::fp8_linear_backward");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &weight = saved[0], gradient = as_rows(gradients[0]);
    at::Tensor of_x, of_weight, of_bias;
    if (ctx->needs_input_grad(0)) {
      of_x = product(gradient, weight.t(), {})
                 .to(gradient.scalar_type())
                 .view(ctx->saved_data["shape"].toIntVector());
    }
    if (ctx->needs_input_grad(1)) {
      const at::Tensor x = as_rows(saved_input(ctx, saved));
      if (has_device_products(gradient, x, weight)) {
        std::tie(of_weight, of_bias) = device_parameter_gradients(gradient.contiguous(), x.contiguous());
        return {of_x, of_weight, of_bias, at::Tensor(), at::Tensor()};
      }
      of_weight = weight_gradient(gradient, x).to(weight.scalar_type());
    }
    if (ctx->needs_input_grad(2)) {
      of_bias = gradient.sum(0, /*keepdim=*/false, at::kFloat).to(weight.scalar_type());
    }
    return {of_x, of_weight, of_bias, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

Fp8Rows fp8_rows(const at::Tensor& rows) { return filled_rows(rows, 0, 0); }

at::Tensor fp8_rounded(const at::Tensor& rows) {
  TESSERA_CHECK(rows.dim() == 2, "rows of ", rows.dim(), " dims");
  const bool known = rows.scalar_type() == at::kBFloat16 || rows.scalar_type() == at::kFloat;
  if (is_for_kernels(rows) && known) return rounded_by_kernel(rows);
  const Fp8Rows found = fp8_rows(rows);
  return found.numbers.to(at::kFloat).mul_(found.scales).to(at::kBFloat16);
}

at::Tensor scaled_product(const at::Tensor& left, const at::Tensor& right, const at::Tensor& bias) {
  const int64_t m = left.size(0), n = right.size(0);
  if (m == 0) return at::empty({0, n}, left.options().dtype(at::kBFloat16));
  const int64_t more_k = rest_to_16(left.size(1)), more_n = rest_to_16(n);
  const Fp8Rows a = filled_rows(left, more_k, 0), b = filled_rows(right, more_k, more_n);
  std::optional<at::Tensor> added;
  if (bias.defined()) added = more_n == 0 ? bias : at::constant_pad_nd(bias, {0, more_n});
  const at::Tensor whole = at::_scaled_mm(
      a.numbers.contiguous(), b.numbers.contiguous().t(), a.scales, b.scales.view({1, -1}), added,
      /*scale_result=*/std::nullopt, at::kBFloat16, /*use_fast_accum=*/false);
  return more_n == 0 ? whole : whole.narrow(1, 0, n).contiguous();
}

at::Tensor fp8_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, Use use) {
  return Fp8Linear::apply(x, weight, bias, RecomputeFrom(), use);
}

at::Tensor fp8_linear(const LayerNormOutput& x, const at::Tensor& weight, const at::Tensor& bias) {
  return Fp8Linear::apply(x.rows, weight, bias, RecomputeFrom(x), Use::kRead);
}

at::Tensor fp8_linear(const GeluOutput& x, const at::Tensor& weight, const at::Tensor& bias, Use use) {
  return Fp8Linear::apply(x.rows, weight, bias, RecomputeFrom(x), use);
}

}  // namespace tessera::ops
