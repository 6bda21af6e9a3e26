#include "tessera/ops/layer_norm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/ops/avx512_norm.h"
#include "tessera/ops/device_norm.h"
#include "tessera/ops/fast_path.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rows whose sums are added up apart: fixed, so that sums do not depend on the number of threads.
constexpr int64_t kChunk = 256;

// Element: uint16_t (the bits of bf16) or float.
template <typename Element>
class FastLayerNorm : public torch::autograd::Function<FastLayerNorm<Element>> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_given, const at::Tensor& weight,
                            const at::Tensor& bias, double epsilon) {
    RECORD_USER_SCOPE("tessera::layer_norm");
    const at::Tensor x = x_given.contiguous();
    const int64_t width = weight.size(0), rows = x.numel() / width;
    at::Tensor y = at::empty_like(x);
    at::Tensor stats = at::empty({rows, 2}, x.options().dtype(at::kFloat));
    at::parallel_for(0, rows, 256, [&](int64_t begin, int64_t end) {
      avx512::layer_norm(data_of<Element>(x) + begin * width, end - begin, width, data_of<Element>(weight),
                         data_of<Element>(bias), static_cast<float>(epsilon),
                         mutable_data_of<Element>(y) + begin * width,
                         stats.mutable_data_ptr<float>() + 2 * begin);
    });
    ctx->save_for_backward({x, weight, stats});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    RECORD_USER_SCOPE("tessera::layer_norm_backward");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &stats = saved[2];
    const at::Tensor gradient = gradients[0].contiguous();
    const int64_t width = weight.size(0), rows = x.numel() / width;
    const int64_t chunks = (rows + kChunk - 1) / kChunk;
    at::Tensor dx = at::empty_like(x);
    at::Tensor sums = at::zeros({chunks, 2, width}, stats.options());
    at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        const int64_t row = chunk * kChunk, at = row * width;
        float* chunk_sums = sums.mutable_data_ptr<float>() + 2 * chunk * width;
        avx512::layer_norm_backward(data_of<Element>(gradient) + at, data_of<Element>(x) + at,
                                    std::min(kChunk, rows - row), width, data_of<Element>(weight),
                                    stats.const_data_ptr<float>() + 2 * row,
                                    mutable_data_of<Element>(dx) + at, chunk_sums, chunk_sums + width);
      }
    });
    const at::Tensor total = sums.sum(0).to(weight.scalar_type());
    return {dx, total[0], total[1], at::Tensor()};
  }
};

}  // namespace

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon) {
  if (has_device_norm(x, {}, weight, bias)) return device_norm(x, {}, weight, bias, epsilon).first;
  const auto all = [&](bool (*fits)(const at::Tensor&)) { return fits(x) && fits(weight) && fits(bias); };
  if (all(fits_amx) || all(fits_avx512_bf16)) {
    return FastLayerNorm<uint16_t>::apply(x, weight.contiguous(), bias.contiguous(), epsilon);
  }
  if (all(fits_avx512)) {
    return FastLayerNorm<float>::apply(x, weight.contiguous(), bias.contiguous(), epsilon);
  }
  if (x.is_cpu() && at::isReducedFloatingType(x.scalar_type())) {
    // LibTorch's CPU kernel adds up the parameters' gradients in that: in bf16 a tenth is lost over 2,500
    // rows.
    const auto wide = [](const at::Tensor& t) { return t.to(at::kFloat); };
    return at::layer_norm(wide(x), {weight.size(0)}, wide(weight), wide(bias), epsilon).to(x.scalar_type());
  }
  return at::layer_norm(x, {weight.size(0)}, weight, bias, epsilon);
}

std::pair<at::Tensor, at::Tensor> layer_norm_of_sum(const at::Tensor& x, const at::Tensor& added,
                                                    const at::Tensor& weight, const at::Tensor& bias,
                                                    double epsilon) {
  if (has_device_norm(x, added, weight, bias)) return device_norm(x, added, weight, bias, epsilon);
  const at::Tensor sum = added.defined() ? x + added : x;
  return {layer_norm(sum, weight, bias, epsilon), sum};
}

}  // namespace tessera::ops
