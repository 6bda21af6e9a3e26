// The products of linear layers on CPUs with kernels for them, and what of autograd's functions is about
// tensors: private to linear.cpp, mlp.cpp and keyless_attention.cpp. Calls run on the threads of the caller's
// rank.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/ops/amx_gemm.h"
#include "tessera/ops/fast_path.h"
#include "tessera/ops/gradient_place.h"
#include "tessera/ops/vector_gemm.h"

namespace tessera::ops {

template <typename Body>
void over_blocks(int64_t blocks, const Body& body) {
  at::parallel_for(0, blocks, 4, body);
}

// The products of linear layers as kernels that FastLinear and FastMlp use. All matrices have T's dtype and
// no gaps.
//   forward(x [rows, in], weight [out, in]): x weight^T
//   input_gradient(gradient [rows, out], weight): gradient weight
// These two end with the epilogue that they are given.
//   weight_gradient(gradient, x): gradient^T x, and the column sums of gradient, fp32 [out]; `gelu`: of
//     gelu(x), which is made while x is packed

/// What follows rows from element `at` of the result on, which begins one.
template <typename T>
Epilogue<T> epilogue_from(Epilogue<T> e, int64_t at) {
  e.out += at;
  if (e.residual != nullptr) e.residual += at;
  if (e.linear != nullptr) e.linear += at;
  if (e.slope_of != nullptr) e.slope_of += at;
  return e;
}

/// By vectors::Gemm or amx::Gemm.
template <typename GemmOfCpu>
struct KernelProducts {
  using Gemm = GemmOfCpu;
  using T = typename Gemm::Element;
  using Packed = typename Gemm::PackedElement;
  // Sums that wait for another piece of k: of a weight's gradient 64 MiB, all of a layer up to 2048 wide; of
  // rows 16 MiB.
  static constexpr int64_t kMostSums = 16 << 20, kMostRowSums = 4 << 20;

  static void forward(const T* x, const T* weight, int64_t rows, int64_t in, int64_t out,
                      const Epilogue<T>& epilogue) {
    const at::Tensor packed = scratch<Packed>(Gemm::packed_size(in, out));
    over_blocks((out + 31) / 32, [&](int64_t begin, int64_t end) {
      Gemm::pack_transposed(weight, out, in, begin, end, mutable_data_of<Packed>(packed));
    });
    multiply(x, rows, in, packed, out, epilogue);
  }
  static void input_gradient(const T* gradient, const T* weight, int64_t rows, int64_t in, int64_t out,
                             const Epilogue<T>& epilogue) {
    const at::Tensor packed = scratch<Packed>(Gemm::packed_size(out, in));
    pack(weight, false, out, in, packed);
    multiply(gradient, rows, out, packed, in, epilogue);
  }
  // One piece of the rows after another: packed, they stay in the caches. Sums wait in between, so as much of
  // the result is made at a time as has kMostSums.
  static void weight_gradient(const T* gradient, const T* x, bool gelu, int64_t rows, int64_t in, int64_t out,
                              T* result, float* sums) {
    const int64_t piece_rows = Gemm::piece_of(rows);
    const int64_t group =
        std::min(piece_rows == rows ? out : std::max<int64_t>(kMostSums / in / 256, 1) * 256, out);
    const at::Tensor packed = scratch<Packed>(Gemm::packed_size(piece_rows, in));
    const at::Tensor left = scratch<Packed>(Gemm::left_size(piece_rows, group));
    const at::Tensor waiting = scratch<float>(piece_rows == rows ? 0 : Gemm::sums_size(group, in));
    std::fill_n(sums, out, 0.0F);
    for (int64_t first = 0; first < out; first += group) {
      const int64_t some = std::min(group, out - first);
      for (int64_t row = 0; row < rows; row += piece_rows) {
        const int64_t k = std::min(piece_rows, rows - row);
        pack(x + row * in, gelu, k, in, packed);
        over_blocks((some + Gemm::kLeftBlock - 1) / Gemm::kLeftBlock, [&](int64_t begin, int64_t end) {
          Gemm::pack_left(gradient + row * out + first, out, some, k, begin, end,
                          mutable_data_of<Packed>(left), sums + first);
        });
        const typename Gemm::Piece piece{row == 0, row + k == rows, mutable_data_of<float>(waiting)};
        in_turns(some, in, [&](const vectors::Turns& turns) {
          Gemm::multiply_packed(data_of<Packed>(left), some, k, data_of<Packed>(packed), in,
                                {.out = result + first * in}, piece, turns);
        });
      }
    }
  }
  static void gelu_backward(const T* gradient, const T* linear, T* result, int64_t count) {
    Gemm::gelu_backward(gradient, linear, result, count);
  }

 private:
  static void pack(const T* w, bool gelu, int64_t k, int64_t columns, const at::Tensor& packed) {
    over_blocks(Gemm::depth(k) / 16, [&](int64_t begin, int64_t end) {
      Gemm::pack(w, k, columns, begin, end, gelu, mutable_data_of<Packed>(packed));
    });
  }
  static void multiply(const T* a, int64_t rows, int64_t k, const at::Tensor& packed, int64_t columns,
                       const Epilogue<T>& epilogue) {
    if constexpr (Gemm::kCutsOutside) {
      const int64_t depth = Gemm::piece_of(k);
      const int64_t group = depth == k ? rows : std::max<int64_t>(kMostRowSums / columns / 256, 1) * 256;
      const at::Tensor waiting =
          scratch<float>(depth == k ? 0 : Gemm::sums_size(std::min(group, rows), columns));
      for (int64_t first = 0; first < rows; first += group) {
        const int64_t some = std::min(group, rows - first);
        const Epilogue<T> of_group = epilogue_from(epilogue, first * columns);
        for (int64_t begin = 0; begin < k; begin += depth) {
          const typename Gemm::Cut cut{begin, std::min(depth, k - begin), k};
          in_turns(some, columns, [&](const vectors::Turns& turns) {
            Gemm::multiply_cut(a + first * k, some, cut, data_of<Packed>(packed), columns, of_group,
                               mutable_data_of<float>(waiting), turns);
          });
        }
      }
    } else {
      in_turns(rows, columns, [&](const vectors::Turns& turns) {
        Gemm::multiply(a, rows, k, data_of<Packed>(packed), columns, epilogue, turns);
      });
    }
  }
  template <typename Body>
  static void in_turns(int64_t rows, int64_t columns, const Body& body) {
    std::vector<int64_t> taken(static_cast<size_t>(Gemm::chunks(columns)));
    const int64_t blocks = (rows + Gemm::kRows - 1) / Gemm::kRows;
    const vectors::Turns turns{std::min<int64_t>(at::get_num_threads(), blocks), taken.data()};
    at::parallel_for(0, turns.threads, 1, [&](int64_t, int64_t) { body(turns); });
  }
};

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
                              T* result, float* sums) {
    Of::with([&]<typename P>(P) { P::weight_gradient(gradient, x, gelu, rows, in, out, result, sums); });
  }
  static void gelu_backward(const T* gradient, const T* linear, T* result, int64_t count) {
    Of::with([&]<typename P>(P) { P::gelu_backward(gradient, linear, result, count); });
  }
};

struct Fp32Products : ProductsOfCpu<Fp32Products, float> {
  static bool fit(const at::Tensor& t) { return fits_fp32(t); }

  template <typename Body>
  static void with(const Body& body) {
    with_vectors<float>([&]<typename Set>(Set) { body(KernelProducts<vectors::Gemm<Set, float>>()); });
  }
};

struct Bf16Products : ProductsOfCpu<Bf16Products, uint16_t> {
  static bool fit(const at::Tensor& t) { return fits_bf16(t); }

  template <typename Body>
  static void with(const Body& body) {
    if (cpu_has_amx()) return body(KernelProducts<amx::Gemm>());
    if (cpu_favours_bf16()) return body(KernelProducts<vectors::Gemm<vectors::Avx512, uint16_t>>());
    with_vectors<uint16_t>(
        [&]<typename Set>(Set) { body(KernelProducts<vectors::Gemm<Set, uint16_t, float>>()); });
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

/// Of the weight [out, in] and the bias [out] of a layer whose input was x [..., in], or `gelu` of x.
template <typename Products>
std::pair<at::Tensor, at::Tensor> parameter_gradients(const at::Tensor& gradient, const at::Tensor& x,
                                                      const at::Tensor& weight, bool gelu = false) {
  RECORD_USER_SCOPE("tessera::linear_weight_gradient");
  using T = typename Products::T;
  const int64_t out = weight.size(0), in = weight.numel() / out;
  const at::Tensor result = empty_gradient(weight);
  const at::Tensor sums = at::empty({out}, at::TensorOptions().dtype(at::kFloat));
  Products::weight_gradient(data_of<T>(gradient), data_of<T>(x), gelu, x.numel() / in, in, out,
                            mutable_data_of<T>(result), mutable_data_of<float>(sums));
  return {result, sums.to(weight.scalar_type())};
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
