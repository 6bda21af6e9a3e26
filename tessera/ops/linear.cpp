#include "tessera/ops/linear.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <tuple>
#include <type_traits>

#include "tessera/ops/amx_gemm.h"
#include "tessera/ops/avx512_gemm.h"
#include "tessera/ops/device_linear.h"
#include "tessera/ops/fast_path.h"
#include "tessera/ops/kept_input.h"
#include "tessera/ops/plain_linear.h"
#include "tessera/ops/widened_linear.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

enum class Then : int64_t { kNothing, kGelu, kAdd };

// Spread over the threads, in multiples of `unit`.
template <typename Body>
void over_units(int64_t size, int64_t unit, const Body& body) {
  at::parallel_for(0, (size + unit - 1) / unit, 1,
                   [&](int64_t begin, int64_t end) { body(begin * unit, std::min(end * unit, size)); });
}

template <typename Body>
void over_blocks(int64_t blocks, const Body& body) {
  at::parallel_for(0, blocks, 4, body);
}

// The products of linear layers as kernels that FastLinear uses. All matrices have T's dtype and no gaps.
//   forward(x [rows, in], weight [out, in]): x weight^T
//   input_gradient(gradient [rows, out], weight): gradient weight
//   weight_gradient(gradient, x): gradient^T x, and the column sums of gradient, fp32 [out]

struct AmxProducts {
  using T = uint16_t;

  static bool fit(const at::Tensor& t) { return fits_amx(t); }

  static void forward(const T* x, const T* weight, int64_t rows, int64_t in, int64_t out,
                      const Epilogue<T>& epilogue) {
    const at::Tensor packed = scratch<T>(amx::packed_size(in, out));
    over_blocks(amx::blocks(out), [&](int64_t begin, int64_t end) {
      amx::pack_transposed(weight, out, in, begin, end, mutable_data_of<T>(packed));
    });
    multiply(x, rows, in, packed, out, epilogue);
  }
  static void input_gradient(const T* gradient, const T* weight, int64_t rows, int64_t in, int64_t out,
                             T* result) {
    multiply(gradient, rows, out, pack(weight, out, in), in, {result, nullptr, nullptr, nullptr});
  }
  static void weight_gradient(const T* gradient, const T* x, int64_t rows, int64_t in, int64_t out, T* result,
                              float* sums) {
    const at::Tensor packed = pack(x, rows, in);
    const Epilogue<T> epilogue{result, nullptr, nullptr, nullptr};
    over_units(out, amx::kRows, [&](int64_t begin, int64_t end) {
      const at::Tensor left = scratch<T>(amx::packed_size(rows, std::min(amx::transposed_group(rows), out)));
      amx::multiply_transposed(gradient, out, begin, end, rows, data_of<T>(packed), in, epilogue, sums,
                               mutable_data_of<T>(left));
    });
  }
  static void gelu_backward(const T* gradient, const T* linear, T* result, int64_t count) {
    amx::gelu_backward(gradient, linear, result, count);
  }

 private:
  static at::Tensor pack(const T* w, int64_t k, int64_t columns) {
    at::Tensor packed = scratch<T>(amx::packed_size(k, columns));
    over_blocks(amx::blocks(k), [&](int64_t begin, int64_t end) {
      amx::pack(w, k, columns, begin, end, mutable_data_of<T>(packed));
    });
    return packed;
  }
  static void multiply(const T* a, int64_t rows, int64_t k, const at::Tensor& packed, int64_t columns,
                       const Epilogue<T>& epilogue) {
    over_units(rows, amx::kRows, [&](int64_t begin, int64_t end) {
      amx::multiply(a, begin, end, k, data_of<T>(packed), columns, epilogue);
    });
  }
};

template <typename Element>
struct Avx512Products {
  using T = Element;
  using Gemm = avx512::Gemm<T>;
  static constexpr int64_t kMostSums = 16 << 20;  // 64 MiB: all of a layer up to 2048 wide

  static bool fit(const at::Tensor& t) {
    if constexpr (std::is_same_v<T, float>) return fits_avx512(t);
    return fits_avx512_bf16(t);
  }

  static void forward(const T* x, const T* weight, int64_t rows, int64_t in, int64_t out,
                      const Epilogue<T>& epilogue) {
    const at::Tensor packed = scratch<T>(Gemm::packed_size(in, out));
    over_blocks((out + 31) / 32, [&](int64_t begin, int64_t end) {
      Gemm::pack_transposed(weight, out, in, begin, end, mutable_data_of<T>(packed));
    });
    multiply(x, rows, in, packed, out, epilogue);
  }
  static void input_gradient(const T* gradient, const T* weight, int64_t rows, int64_t in, int64_t out,
                             T* result) {
    const at::Tensor packed = scratch<T>(Gemm::packed_size(out, in));
    pack(weight, out, in, packed);
    multiply(gradient, rows, out, packed, in, {result, nullptr, nullptr, nullptr});
  }
  // One piece of the rows after another: packed, they stay in the caches. Sums wait in between, so as much of
  // the result is made at a time as has kMostSums.
  static void weight_gradient(const T* gradient, const T* x, int64_t rows, int64_t in, int64_t out, T* result,
                              float* sums) {
    const int64_t group = rows <= Gemm::kPiece ? out : std::max<int64_t>(kMostSums / in / 256, 1) * 256;
    const at::Tensor packed = scratch<T>(Gemm::packed_size(std::min(rows, Gemm::kPiece), in));
    const at::Tensor waiting =
        scratch<float>(rows <= Gemm::kPiece ? 0 : Gemm::sums_size(std::min(group, out), in));
    std::fill_n(sums, out, 0.0F);
    for (int64_t first = 0; first < out; first += group) {
      for (int64_t row = 0; row < rows; row += Gemm::kPiece) {
        const int64_t k = std::min(Gemm::kPiece, rows - row);
        pack(x + row * in, k, in, packed);
        const typename Gemm::Piece piece{row == 0, row + k == rows, first, mutable_data_of<float>(waiting),
                                         sums};
        over_units(std::min(group, out - first), 16, [&](int64_t begin, int64_t end) {
          const at::Tensor left = scratch<T>(Gemm::kScratch);
          Gemm::multiply_transposed(gradient + row * out, out, first + begin, first + end, k,
                                    data_of<T>(packed), in, {result, nullptr, nullptr, nullptr}, piece,
                                    mutable_data_of<T>(left));
        });
      }
    }
  }
  static void gelu_backward(const T* gradient, const T* linear, T* result, int64_t count) {
    Gemm::gelu_backward(gradient, linear, result, count);
  }

 private:
  static void pack(const T* w, int64_t k, int64_t columns, const at::Tensor& packed) {
    over_blocks(Gemm::depth(k) / 16, [&](int64_t begin, int64_t end) {
      Gemm::pack(w, k, columns, begin, end, mutable_data_of<T>(packed));
    });
  }
  static void multiply(const T* a, int64_t rows, int64_t k, const at::Tensor& packed, int64_t columns,
                       const Epilogue<T>& epilogue) {
    over_units(rows, Gemm::kRows, [&](int64_t begin, int64_t end) {
      Gemm::multiply(a, begin, end, k, data_of<T>(packed), columns, epilogue);
    });
  }
};

template <typename Products>
class FastLinear : public torch::autograd::Function<FastLinear<Products>> {
  using T = typename Products::T;

 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_given, const at::Tensor& weight,
                            const at::Tensor& bias, const std::optional<at::Tensor>& residual, Then then,
                            const std::optional<Normed>& normed) {
    RECORD_USER_SCOPE("tessera::linear");
    const at::Tensor x = x_given.contiguous();
    const int64_t out = weight.size(0), in = weight.numel() / out, rows = x.numel() / in;
    auto shape = x.sizes().vec();
    shape.back() = out;
    at::Tensor y = at::empty(shape, x.options());
    Epilogue<T> epilogue{mutable_data_of<T>(y), data_of<T>(bias), nullptr, nullptr};
    at::Tensor before_gelu, added;
    if (then == Then::kGelu) {
      before_gelu = at::empty(shape, x.options());
      epilogue.linear = mutable_data_of<T>(before_gelu);
    } else if (then == Then::kAdd) {
      added = residual->contiguous();
      epilogue.residual = data_of<T>(added);
    }
    Products::forward(data_of<T>(x), data_of<T>(weight), rows, in, out, epilogue);
    save_with_input(ctx, {weight, before_gelu}, x, normed);
    ctx->saved_data["added"] = then == Then::kAdd;
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& weight = saved[0];
    const at::Tensor gradient = through_gelu(gradients[0].contiguous(), saved[1]);
    at::Tensor x_gradient, weight_gradient, bias_gradient;
    if (ctx->needs_input_grad(1) || ctx->needs_input_grad(2)) {
      std::tie(weight_gradient, bias_gradient) =
          parameter_gradients(gradient, saved_input(ctx, saved), weight);
    }
    if (ctx->needs_input_grad(0)) x_gradient = input_gradient(gradient, weight);
    const bool added = ctx->saved_data["added"].toBool();
    return {x_gradient,   weight_gradient, bias_gradient, added ? gradients[0] : at::Tensor(),
            at::Tensor(), at::Tensor()};
  }

 private:
  static at::Tensor through_gelu(const at::Tensor& gradient, const at::Tensor& before_gelu) {
    if (!before_gelu.defined()) return gradient;
    RECORD_USER_SCOPE("tessera::gelu_backward");
    at::Tensor inner = at::empty_like(gradient);
    at::parallel_for(0, gradient.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
      Products::gelu_backward(data_of<T>(gradient) + begin, data_of<T>(before_gelu) + begin,
                              mutable_data_of<T>(inner) + begin, end - begin);
    });
    return inner;
  }

  static at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& weight) {
    RECORD_USER_SCOPE("tessera::linear_input_gradient");
    const int64_t out = weight.size(0), in = weight.numel() / out;
    auto shape = gradient.sizes().vec();
    shape.back() = in;
    at::Tensor result = at::empty(shape, gradient.options());
    Products::input_gradient(data_of<T>(gradient), data_of<T>(weight), result.numel() / in, in, out,
                             mutable_data_of<T>(result));
    return result;
  }

  static std::pair<at::Tensor, at::Tensor> parameter_gradients(const at::Tensor& gradient,
                                                               const at::Tensor& x,
                                                               const at::Tensor& weight) {
    RECORD_USER_SCOPE("tessera::linear_weight_gradient");
    const int64_t out = weight.size(0), in = weight.numel() / out;
    at::Tensor result = at::empty(weight.sizes(), weight.options());
    at::Tensor sums = at::empty({out}, at::TensorOptions().dtype(at::kFloat));
    Products::weight_gradient(data_of<T>(gradient), data_of<T>(x), x.numel() / in, in, out,
                              mutable_data_of<T>(result), mutable_data_of<float>(sums));
    return {result, sums.to(weight.scalar_type())};
  }
};

template <typename Products>
bool fit(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return Products::fit(x) && Products::fit(weight) && Products::fit(bias) && weight.is_contiguous() &&
         bias.is_contiguous();
}

// A weight of more than two dims (a patch embedding's) is a matrix [out, the rest].
at::Tensor as_matrix(const at::Tensor& weight) { return weight.dim() > 2 ? weight.flatten(1) : weight; }

// A product may have another dtype than its factors.
bool under_autocast(const at::Tensor& x) {
  const c10::DeviceType device = x.device().type();
  return at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device);
}

at::Tensor layer(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                 const std::optional<at::Tensor>& residual, Then then,
                 const std::optional<Normed>& normed = std::nullopt) {
  const auto with = [&]<typename Products>(Products) {
    return FastLinear<Products>::apply(x, weight, bias, residual, then, normed);
  };
  const bool alike = !residual || residual->scalar_type() == x.scalar_type();
  if (alike) {
    if (fit<AmxProducts>(x, weight, bias)) return with(AmxProducts());
    if (fit<Avx512Products<uint16_t>>(x, weight, bias)) return with(Avx512Products<uint16_t>());
    if (fit<Avx512Products<float>>(x, weight, bias)) return with(Avx512Products<float>());
  }
  const at::Tensor matrix = as_matrix(weight);
  if (alike && has_device_products(x, matrix, bias)) {
    return device_linear(x, matrix, bias, residual, then == Then::kGelu, normed);
  }
  if (alike && should_widen(x, matrix, bias)) {
    return widened_linear(x, matrix, bias, residual, then == Then::kGelu, normed);
  }
  const at::Tensor y =
      normed && !under_autocast(x) ? plain_linear(x, matrix, bias, *normed) : at::linear(x, matrix, bias);
  return then == Then::kGelu ? at::gelu(y) : then == Then::kAdd ? *residual + y : y;
}

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return layer(x, weight, bias, std::nullopt, Then::kNothing);
}

at::Tensor linear_gelu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return layer(x, weight, bias, std::nullopt, Then::kGelu);
}

at::Tensor linear_add(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      const at::Tensor& residual) {
  return layer(x, weight, bias, residual, Then::kAdd);
}

at::Tensor linear(const Normed& x, const at::Tensor& weight, const at::Tensor& bias) {
  return layer(x.value, weight, bias, std::nullopt, Then::kNothing, x);
}

at::Tensor linear_gelu(const Normed& x, const at::Tensor& weight, const at::Tensor& bias) {
  return layer(x.value, weight, bias, std::nullopt, Then::kGelu, x);
}

}  // namespace tessera::ops
