#include "tessera/ops/linear.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/ops/amx_gemm.h"
#include "tessera/ops/device_linear.h"
#include "tessera/ops/fast_path.h"
#include "tessera/ops/widened_linear.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

enum class Then : int64_t { kNothing, kGelu, kAdd };

bool fast(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return fits_kernels(x) && fits_kernels(weight) && fits_kernels(bias) && weight.is_contiguous() &&
         bias.is_contiguous();
}

// Blocks of 32 rows, spread over the threads.
template <typename Body>
void over_row_blocks(int64_t rows, const Body& body) {
  at::parallel_for(0, (rows + amx::kRows - 1) / amx::kRows, 1, [&](int64_t begin, int64_t end) {
    body(begin * amx::kRows, std::min(end * amx::kRows, rows));
  });
}

// The right factor of a product, packed by all threads; `pack_blocks(begin, end, packed)` does some blocks of
// 32 of the `size` along which it is split.
template <typename Body>
at::Tensor packed_factor(int64_t k, int64_t columns, int64_t size, const Body& pack_blocks) {
  at::Tensor packed = bf16_scratch(amx::packed_size(k, columns));
  at::parallel_for(0, amx::blocks(size), 4,
                   [&](int64_t begin, int64_t end) { pack_blocks(begin, end, mutable_bits(packed)); });
  return packed;
}

at::Tensor pack(const at::Tensor& w, int64_t k, int64_t columns) {
  return packed_factor(k, columns, k, [&](int64_t begin, int64_t end, uint16_t* packed) {
    amx::pack(bits(w), k, columns, begin, end, packed);
  });
}

// gradient [rows, out] times weight [out, in].
at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& weight, int64_t rows, int64_t in,
                          at::IntArrayRef shape) {
  RECORD_USER_SCOPE("tessera::linear_input_gradient");
  const int64_t out = weight.size(0);
  const at::Tensor packed = pack(weight, out, in);
  at::Tensor result = at::empty(shape, gradient.options());
  const amx::Epilogue epilogue{mutable_bits(result), nullptr, nullptr, nullptr};
  over_row_blocks(rows, [&](int64_t begin, int64_t end) {
    amx::multiply(bits(gradient), begin, end, out, bits(packed), in, epilogue);
  });
  return result;
}

// The transpose of gradient [rows, out] times x [rows, in], and the column sums of gradient.
std::pair<at::Tensor, at::Tensor> parameter_gradients(const at::Tensor& gradient, const at::Tensor& x,
                                                      const at::Tensor& weight, int64_t rows, int64_t in) {
  RECORD_USER_SCOPE("tessera::linear_weight_gradient");
  const int64_t out = weight.size(0);
  const at::Tensor packed = pack(x, rows, in);
  at::Tensor result = at::empty(weight.sizes(), weight.options());
  at::Tensor sums = at::empty({out}, at::TensorOptions().dtype(at::kFloat));
  const amx::Epilogue epilogue{mutable_bits(result), nullptr, nullptr, nullptr};
  auto* sums_data = sums.mutable_data_ptr<float>();
  over_row_blocks(out, [&](int64_t begin, int64_t end) {
    at::Tensor left = bf16_scratch(amx::packed_size(rows, std::min(amx::transposed_group(rows), out)));
    amx::multiply_transposed(bits(gradient), out, begin, end, rows, bits(packed), in, epilogue, sums_data,
                             mutable_bits(left));
  });
  return {result, sums.to(at::kBFloat16)};
}

class FastLinear : public torch::autograd::Function<FastLinear> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_given, const at::Tensor& weight,
                            const at::Tensor& bias, const std::optional<at::Tensor>& residual, Then then) {
    RECORD_USER_SCOPE("tessera::linear");
    const at::Tensor x = x_given.contiguous();
    const int64_t out = weight.size(0), in = weight.numel() / out, rows = x.numel() / in;
    auto shape = x.sizes().vec();
    shape.back() = out;
    const at::Tensor packed = packed_factor(in, out, out, [&](int64_t begin, int64_t end, uint16_t* to) {
      amx::pack_transposed(bits(weight), out, in, begin, end, to);
    });
    at::Tensor y = at::empty(shape, x.options());
    amx::Epilogue epilogue{mutable_bits(y), bits(bias), nullptr, nullptr};
    at::Tensor before_gelu, added;
    if (then == Then::kGelu) {
      before_gelu = at::empty(shape, x.options());
      epilogue.linear = mutable_bits(before_gelu);
    } else if (then == Then::kAdd) {
      added = residual->contiguous();
      epilogue.residual = bits(added);
    }
    over_row_blocks(rows, [&](int64_t begin, int64_t end) {
      amx::multiply(bits(x), begin, end, in, bits(packed), out, epilogue);
    });
    ctx->save_for_backward({x, weight, before_gelu});
    ctx->saved_data["added"] = then == Then::kAdd;
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &before_gelu = saved[2];
    const int64_t in = weight.numel() / weight.size(0), rows = x.numel() / in;
    at::Tensor gradient = gradients[0].contiguous();
    if (before_gelu.defined()) {
      RECORD_USER_SCOPE("tessera::gelu_backward");
      at::Tensor inner = at::empty_like(gradient);
      at::parallel_for(0, gradient.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
        amx::gelu_backward(bits(gradient) + begin, bits(before_gelu) + begin, mutable_bits(inner) + begin,
                           end - begin);
      });
      gradient = inner;
    }
    const auto [weight_gradient, bias_gradient] = parameter_gradients(gradient, x, weight, rows, in);
    at::Tensor x_gradient;
    if (ctx->needs_input_grad(0)) {
      x_gradient = input_gradient(gradient, weight, rows, in, x.sizes());
    }
    const bool added = ctx->saved_data["added"].toBool();
    return {x_gradient, weight_gradient, bias_gradient, added ? gradients[0] : at::Tensor(), at::Tensor()};
  }
};

// A weight of more than two dims (a patch embedding's) is a matrix [out, the rest].
at::Tensor as_matrix(const at::Tensor& weight) { return weight.dim() > 2 ? weight.flatten(1) : weight; }

at::Tensor layer(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                 const std::optional<at::Tensor>& residual, Then then) {
  const bool alike = !residual || residual->scalar_type() == at::kBFloat16;
  if (alike && fast(x, weight, bias)) return FastLinear::apply(x, weight, bias, residual, then);
  const at::Tensor matrix = as_matrix(weight);
  if (alike && has_device_products(x, matrix, bias)) {
    return device_linear(x, matrix, bias, residual, then == Then::kGelu);
  }
  if (alike && should_widen(x, matrix, bias)) {
    return widened_linear(x, matrix, bias, residual, then == Then::kGelu);
  }
  const at::Tensor y = at::linear(x, matrix, bias);
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

}  // namespace tessera::ops
