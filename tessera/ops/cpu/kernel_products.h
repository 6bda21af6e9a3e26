// SPDX-License-Identifier: Apache-2.0
// The products of linear layers by the kernels for CPUs: packing, pieces of a long k, groups of rows. No
// LibTorch: linear_products.h brings its memory and threads, tests their own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tessera/ops/cpu/amx_gemm.h"
#include "tessera/ops/cpu/vector_gemm.h"

namespace tessera::ops {

/// What follows rows from element `at` of the result on, which begins one.
template <typename T>
Epilogue<T> epilogue_from(Epilogue<T> e, int64_t at) {
  e.out += at;
  if (e.residual != nullptr) e.residual += at;
  if (e.linear != nullptr) e.linear += at;
  if (e.slope_of != nullptr) e.slope_of += at;
  return e;
}

/// Some rows of a weight's gradient, whose other rows come in other calls.
struct RowsPart {
  bool first = true, last = true;  // the first sets the sums; the last rounds them to the result
  float* waiting = nullptr;  // KernelProducts::waiting_size(), 64 bytes aligned; null: there are no others
};

/// By vectors::Gemm or amx::Gemm. All matrices have T's dtype and no gaps.
///   forward(x [rows, in], weight [out, in]): x weight^T
///   input_gradient(gradient [rows, out], weight): gradient weight
/// These two end with the epilogue that they are given.
///   weight_gradient(gradient, x): gradient^T x, and the column sums of gradient, fp32 [out]; `gelu`: of
///     gelu(x), which is made while x is packed. Of a part that is not the last, the result is not set.
/// Memory and threads are the Runtime's, which has
///   scratch<E>(elements): owns that many, 64 bytes aligned and not set, from .data() on
///   threads(), and parallel(begin, end, grain, body): body(first, last) of parts of [begin, end)
///   kMostSums, kMostRowSums: sums that wait for another piece of k, of a weight's gradient and of rows
template <typename GemmOfCpu, typename Runtime>
struct KernelProducts {
  using Gemm = GemmOfCpu;
  using T = typename Gemm::Element;
  using Packed = typename Gemm::PackedElement;

  static void forward(const T* x, const T* weight, int64_t rows, int64_t in, int64_t out,
                      const Epilogue<T>& epilogue) {
    const auto packed = Runtime::template scratch<Packed>(Gemm::packed_size(in, out));
    over_blocks((out + 31) / 32, [&](int64_t begin, int64_t end) {
      Gemm::pack_transposed(weight, out, in, begin, end, packed.data());
    });
    multiply(x, rows, in, packed.data(), out, epilogue);
  }
  static void input_gradient(const T* gradient, const T* weight, int64_t rows, int64_t in, int64_t out,
                             const Epilogue<T>& epilogue) {
    const auto packed = Runtime::template scratch<Packed>(Gemm::packed_size(out, in));
    pack(weight, false, out, in, packed.data());
    multiply(gradient, rows, out, packed.data(), in, epilogue);
  }
  // One piece of the rows after another: packed, they stay in the caches. Sums wait in between, so as much of
  // the result is made at a time as has Runtime::kMostSums.
  static void weight_gradient(const T* gradient, const T* x, bool gelu, int64_t rows, int64_t in, int64_t out,
                              T* result, float* sums, const RowsPart& part = {}) {
    const int64_t piece_rows = Gemm::piece_of(rows);
    const bool all_at_once = piece_rows == rows || part.waiting != nullptr;
    const int64_t group =
        std::min(all_at_once ? out : std::max<int64_t>(Runtime::kMostSums / in / 256, 1) * 256, out);
    const auto packed = Runtime::template scratch<Packed>(Gemm::packed_size(piece_rows, in));
    const auto left = Runtime::template scratch<Packed>(Gemm::left_size(piece_rows, group));
    const auto waiting = Runtime::template scratch<float>(all_at_once ? 0 : Gemm::sums_size(group, in));
    if (part.first) std::fill_n(sums, out, 0.0F);
    for (int64_t first = 0; first < out; first += group) {
      const int64_t some = std::min(group, out - first);
      for (int64_t row = 0; row < rows; row += piece_rows) {
        const int64_t k = std::min(piece_rows, rows - row);
        pack(x + row * in, gelu, k, in, packed.data());
        over_blocks((some + Gemm::kLeftBlock - 1) / Gemm::kLeftBlock, [&](int64_t begin, int64_t end) {
          Gemm::pack_left(gradient + row * out + first, out, some, k, begin, end, left.data(), sums + first);
        });
        const typename Gemm::PartialSums piece{part.first && row == 0, part.last && row + k == rows,
                                               part.waiting != nullptr ? part.waiting : waiting.data()};
        in_turns(some, in, [&](const vectors::Turns& turns) {
          Gemm::multiply_packed(left.data(), some, k, packed.data(), in, {.out = result + first * in}, piece,
                                turns);
        });
      }
    }
  }
  static constexpr int64_t waiting_size(int64_t in, int64_t out) { return Gemm::sums_size(out, in); }
  static void gelu_backward(const T* gradient, const T* linear, T* result, int64_t count) {
    Gemm::gelu_backward(gradient, linear, result, count);
  }

 private:
  static void pack(const T* w, bool gelu, int64_t k, int64_t columns, Packed* packed) {
    over_blocks(Gemm::depth(k) / 16,
                [&](int64_t begin, int64_t end) { Gemm::pack(w, k, columns, begin, end, gelu, packed); });
  }
  static void multiply(const T* a, int64_t rows, int64_t k, const Packed* packed, int64_t columns,
                       const Epilogue<T>& epilogue) {
    if constexpr (Gemm::kCutsOutside) {
      const int64_t depth = Gemm::piece_of(k);
      const int64_t group =
          depth == k ? rows : std::max<int64_t>(Runtime::kMostRowSums / columns / 256, 1) * 256;
      const auto waiting =
          Runtime::template scratch<float>(depth == k ? 0 : Gemm::sums_size(std::min(group, rows), columns));
      for (int64_t first = 0; first < rows; first += group) {
        const int64_t some = std::min(group, rows - first);
        const Epilogue<T> of_group = epilogue_from(epilogue, first * columns);
        for (int64_t begin = 0; begin < k; begin += depth) {
          const typename Gemm::Cut cut{begin, std::min(depth, k - begin), k};
          in_turns(some, columns, [&](const vectors::Turns& turns) {
            Gemm::multiply_cut(a + first * k, some, cut, packed, columns, of_group, waiting.data(), turns);
          });
        }
      }
    } else {
      in_turns(rows, columns, [&](const vectors::Turns& turns) {
        Gemm::multiply(a, rows, k, packed, columns, epilogue, turns);
      });
    }
  }
  template <typename Body>
  static void over_blocks(int64_t blocks, const Body& body) {
    Runtime::parallel(0, blocks, 4, body);
  }
  template <typename Body>
  static void in_turns(int64_t rows, int64_t columns, const Body& body) {
    std::vector<int64_t> taken(static_cast<size_t>(Gemm::chunks(columns)));
    const int64_t blocks = (rows + Gemm::kRows - 1) / Gemm::kRows;
    const vectors::Turns turns{std::min<int64_t>(Runtime::threads(), blocks), taken.data()};
    Runtime::parallel(0, turns.threads, 1, [&](int64_t, int64_t) { body(turns); });
  }
};

}  // namespace tessera::ops
