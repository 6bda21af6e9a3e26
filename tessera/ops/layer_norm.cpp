// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/layer_norm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/ops/cpu/vector_norm.h"
#include "tessera/ops/device/norm.h"
#include "tessera/ops/fast_path.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rows whose sums are added up apart: fixed, so that sums do not depend on the number of threads.
constexpr int64_t kChunk = 256;

// Element: uint16_t (the bits of bf16) or float. Two results, as device/norm.h's: the normalised rows, and x
// for whoever goes on with it, whose gradient is added where the gradient through the norm is made.
template <typename Element>
class FastLayerNorm : public torch::autograd::Function<FastLayerNorm<Element>> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x_given, const at::Tensor& weight,
                               const at::Tensor& bias, double epsilon) {
    RECORD_USER_SCOPE("tessera::layer_norm");
    const at::Tensor x = x_given.contiguous();
    const int64_t width = weight.size(0), rows = x.numel() / width;
    at::Tensor y = at::empty_like(x);
    at::Tensor stats = at::empty({rows, 2}, x.options().dtype(at::kFloat));
    at::parallel_for(0, rows, 256, [&](int64_t begin, int64_t end) {
      with_vectors<Element>([&]<typename Set>(Set) {
        vectors::LayerNormRows<Set, Element>::forward(
            data_of<Element>(x) + begin * width, end - begin, width, data_of<Element>(weight),
            data_of<Element>(bias), static_cast<float>(epsilon), mutable_data_of<Element>(y) + begin * width,
            stats.mutable_data_ptr<float>() + 2 * begin);
      });
    });
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({x, weight, stats});
    return {y, x_given};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    RECORD_USER_SCOPE("tessera::layer_norm_backward");
    if (!gradients[0].defined()) return {gradients[1], at::Tensor(), at::Tensor(), at::Tensor()};
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &stats = saved[2];
    const at::Tensor gradient = gradients[0].contiguous();
    const at::Tensor of_x = gradients[1].defined() ? gradients[1].contiguous() : at::Tensor();
    const Element* more = of_x.defined() ? data_of<Element>(of_x) : nullptr;
    const int64_t width = weight.size(0), rows = x.numel() / width;
    const int64_t chunks = (rows + kChunk - 1) / kChunk;
    at::Tensor dx = at::empty_like(x);
    at::Tensor sums = at::zeros({chunks, 2, width}, stats.options());
    at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        const int64_t row = chunk * kChunk, at = row * width;
        float* chunk_sums = sums.mutable_data_ptr<float>() + 2 * chunk * width;
        with_vectors<Element>([&]<typename Set>(Set) {
          vectors::LayerNormRows<Set, Element>::backward(
              data_of<Element>(gradient) + at, more == nullptr ? nullptr : more + at,
              data_of<Element>(x) + at, std::min(kChunk, rows - row), width, data_of<Element>(weight),
              stats.const_data_ptr<float>() + 2 * row, mutable_data_of<Element>(dx) + at, chunk_sums,
              chunk_sums + width);
        });
      }
    });
    const at::Tensor total = sums.sum(0).to(weight.scalar_type());
    return {dx, total[0], total[1], at::Tensor()};
  }
};

// LibTorch's CPU kernel adds up the parameters' gradients in the dtype of x: in bf16 a tenth is lost over
// 2,500 rows. So it computes in fp32; what is kept of x is x.
class WidenedLayerNorm : public torch::autograd::Function<WidenedLayerNorm> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, double epsilon) {
    const auto [y, mean, rstd] =
        at::native_layer_norm(wide(x), {weight.size(0)}, wide(weight), wide(bias), epsilon);
    ctx->save_for_backward({x, weight, bias, mean, rstd});
    return y.to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &bias = saved[2];
    const auto [of_x, of_weight, of_bias] = at::native_layer_norm_backward(
        wide(gradients[0]), wide(x), {weight.size(0)}, saved[3], saved[4], wide(weight), wide(bias),
        {ctx->needs_input_grad(0), ctx->needs_input_grad(1), ctx->needs_input_grad(2)});
    const auto narrow = [](const at::Tensor& t, const at::Tensor& like) {
      return t.defined() ? t.to(like.scalar_type()) : t;
    };
    return {narrow(of_x, x), narrow(of_weight, weight), narrow(of_bias, bias), at::Tensor()};
  }

 private:
  static at::Tensor wide(const at::Tensor& t) { return t.to(at::kFloat); }
};

// The kernels' two results, nothing where they do not apply.
variable_list by_kernels(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         double epsilon) {
  const auto all = [&](bool (*fits)(const at::Tensor&)) { return fits(x) && fits(weight) && fits(bias); };
  if (all(fits_bf16)) {
    return FastLayerNorm<uint16_t>::apply(x, weight.contiguous(), bias.contiguous(), epsilon);
  }
  if (all(fits_fp32)) {
    return FastLayerNorm<float>::apply(x, weight.contiguous(), bias.contiguous(), epsilon);
  }
  return {};
}

}  // namespace

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon) {
  if (has_device_norm(x, {}, weight, bias)) return device_norm(x, {}, weight, bias, epsilon).first;
  if (const variable_list both = by_kernels(x, weight, bias, epsilon); !both.empty()) return both[0];
  if (x.is_cpu() && at::isReducedFloatingType(x.scalar_type())) {
    return WidenedLayerNorm::apply(x, weight, bias, epsilon);
  }
  return at::layer_norm(x, {weight.size(0)}, weight, bias, epsilon);
}

LayerNormOutput normed(const at::Tensor& given, const Norm& norm, const at::Tensor& added) {
  if (has_device_norm(given, added, norm.weight, norm.bias)) {
    const auto [rows, x] = device_norm(given, added, norm.weight, norm.bias, norm.epsilon);
    return {x, norm, rows};
  }
  const at::Tensor x = added.defined() ? given + added : given;
  if (const variable_list both = by_kernels(x, norm.weight, norm.bias, norm.epsilon); !both.empty()) {
    return {both[1], norm, both[0]};
  }
  return {x, norm, layer_norm(x, norm)};
}

at::Tensor made_again(const LayerNormOutput& x) {
  const at::NoGradGuard no_grad;
  const at::Tensor own = x.norm.weight.defined() ? layer_norm(x.x, x.norm) : x.x;
  return x.gather ? x.gather(own) : own;
}

}  // namespace tessera::ops
