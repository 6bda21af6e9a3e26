// SPDX-License-Identifier: Apache-2.0
// The products of linear layers on CPUs with kernels for them, and what of autograd's functions is about
// tensors: private to linear.cpp, mlp.cpp and few_query_attention.cpp. Calls run on the threads of the
// caller's rank.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "tessera/ops/cpu/kernel_products.h"
#include "tessera/ops/fast_path.h"
#include "tessera/ops/gradient_memory.h"
#include "tessera/ops/gradient_sums.h"

namespace tessera::ops {

/// Of KernelProducts: LibTorch's memory and threads.
struct LibTorchRuntime {
  // 64 MiB, all of a layer up to 2048 wide; 16 MiB.
  static constexpr int64_t kMostSums = 16 << 20, kMostRowSums = 4 << 20;

  template <typename Element>
  struct Scratch {
    at::Tensor memory;
    Element* data() const { return mutable_data_of<Element>(memory); }
  };
  template <typename Element>
  static Scratch<Element> scratch(int64_t elements) {
    return {ops::scratch<Element>(elements)};
  }
  static int64_t threads() { return at::get_num_threads(); }
  template <typename Body>
  static void parallel(int64_t begin, int64_t end, int64_t grain, const Body& body) {
    at::parallel_for(begin, end, grain, body);
  }
};

template <typename Gemm>
using ProductsBy = KernelProducts<Gemm, LibTorchRuntime>;

// Those of one dtype that are the fastest on this CPU. Of::with(body) calls body(KernelProducts<...>()).
template <typename Of, typename Element>
struct ProductsOfCpu {
  using T = Element;

  static void forward(const T* x, const T* weight, int64_t rows, int64_t in, int64_t out,
                      const Epilogue<T>& epilogue) {
    Of::with([&]<typename P>(P) { P::forward(x, weight, rows, in, out, epilogue); });
  }
  static void input_gradient(const T* gradient, const T* weight, int64_t rows, int64_t in, int64_t out,
                             const Epilogue<T>& epilogue) {
    Of::with([&]<typename P>(P) { P::input_gradient(gradient, weight, rows, in, out, epilogue); });
  }
  static void weight_gradient(const T* gradient, const T* x, bool gelu, int64_t rows, int64_t in, int64_t out,
                              T* result, float* sums, const RowsPart& part = {}) {
    Of::with(
        [&]<typename P>(P) { P::weight_gradient(gradient, x, gelu, rows, in, out, result, sums, part); });
  }
  static int64_t waiting_size(int64_t in, int64_t out) {
    int64_t size = 0;
    Of::with([&]<typename P>(P) { size = P::waiting_size(in, out); });
    return size;
  }
  static void gelu_backward(const T* gradient, const T* linear, T* result, int64_t count) {
    Of::with([&]<typename P>(P) { P::gelu_backward(gradient, linear, result, count); });
  }
};

struct Fp32Products : ProductsOfCpu<Fp32Products, float> {
  static bool fit(const at::Tensor& t) { return fits_fp32(t); }

  template <typename Body>
  static void with(const Body& body) {
    with_vectors<float>([&]<typename Set>(Set) { body(ProductsBy<vectors::Gemm<Set, float>>()); });
  }
};

struct Bf16Products : ProductsOfCpu<Bf16Products, uint16_t> {
  static bool fit(const at::Tensor& t) { return fits_bf16(t); }

  template <typename Body>
  static void with(const Body& body) {
    if (cpu_has_amx()) return body(ProductsBy<amx::Gemm>());
    if (cpu_favours_bf16()) return body(ProductsBy<vectors::Gemm<vectors::Avx512, uint16_t>>());
    with_vectors<uint16_t>(
        [&]<typename Set>(Set) { body(ProductsBy<vectors::Gemm<Set, uint16_t, float>>()); });
  }
};

/// A tensor like x, its last dim of this size; its values are not set.
inline at::Tensor empty_rows(const at::Tensor& x, int64_t width) {
  auto shape = x.sizes().vec();
  shape.back() = width;
  return at::empty(shape, x.options());
}

/// gradient [..., out] weight [out, in], times gelu' of `before_gelu` [..., in] where that is defined.
template <typename Products>
at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& weight,
                          const at::Tensor& before_gelu = {}) {
  RECORD_USER_SCOPE("tessera::linear_input_gradient");
  using T = typename Products::T;
  const int64_t out = weight.size(0), in = weight.numel() / out;
  const at::Tensor result = empty_rows(gradient, in);
  Epilogue<T> epilogue{.out = mutable_data_of<T>(result)};
  if (before_gelu.defined()) epilogue.slope_of = data_of<T>(before_gelu);
  Products::input_gradient(data_of<T>(gradient), data_of<T>(weight), result.numel() / in, in, out, epilogue);
  return result;
}

/// Of the weight [out, in] and the bias [out] of a layer whose input was x [..., in], or `gelu` of x. `sum`:
/// what other calls of the layer have part in, or null; undefined tensors unless this is its last.
template <typename Products>
std::pair<at::Tensor, at::Tensor> parameter_gradients(const at::Tensor& gradient, const at::Tensor& x,
                                                      const at::Tensor& weight, bool gelu = false,
                                                      GradientSum* sum = nullptr) {
  RECORD_USER_SCOPE("tessera::linear_weight_gradient");
  using T = typename Products::T;
  const int64_t out = weight.size(0), in = weight.numel() / out;
  GradientSum alone;
  GradientSum& whole = sum != nullptr ? *sum : alone;
  RowsPart part;
  if (whole.calls > 1) part = {whole.differentiated == 0, ++whole.differentiated == whole.calls};
  if (part.first) {
    const auto wide = at::TensorOptions().dtype(at::kFloat);
    whole.result = empty_gradient(weight);
    whole.bias = at::empty({out}, wide);
    if (!part.last) whole.waiting = at::empty({Products::waiting_size(in, out)}, wide);
  }
  if (whole.waiting.defined()) part.waiting = mutable_data_of<float>(whole.waiting);
  Products::weight_gradient(data_of<T>(gradient), data_of<T>(x), gelu, x.numel() / in, in, out,
                            mutable_data_of<T>(whole.result), mutable_data_of<float>(whole.bias), part);
  if (!part.last) return {};
  whole.waiting.reset();
  return {std::move(whole.result), whole.bias.to(weight.scalar_type())};
}

/// In forward of a layer, and in backward: the sum in which it has part, or null.
inline void save_sum(torch::autograd::AutogradContext* ctx, const char* name, const SharedGradientSum& sum) {
  if (sum) ctx->saved_data[name] = c10::IValue::make_capsule(sum);
}
inline SharedGradientSum saved_sum(torch::autograd::AutogradContext* ctx, const char* name) {
  const auto found = ctx->saved_data.find(name);
  return found == ctx->saved_data.end()
             ? SharedGradientSum()
             : c10::static_intrusive_pointer_cast<GradientSum>(found->second.toCapsule());
}

/// body(Products()) with those that take all of these tensors, false if there are none.
template <typename Body>
bool with_products(std::initializer_list<at::Tensor> all, const Body& body) {
  const auto tried = [&]<typename Products>(Products products) {
    const bool fit =
        std::all_of(all.begin(), all.end(), [](const at::Tensor& t) { return Products::fit(t); });
    if (fit) body(products);
    return fit;
  };
  return tried(Bf16Products()) || tried(Fp32Products());
}

}  // namespace tessera::ops
