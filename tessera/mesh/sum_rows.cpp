// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/sum_rows.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

namespace tessera::mesh {
namespace {

constexpr int64_t kAtOnce = 1 << 12;  // numbers that stay in the L1 cache from row to row
constexpr int64_t kGrain = 1 << 15;   // for which a thread more is worth it

template <typename Sum, typename Row>
void sum_of(Sum* output, std::span<const void* const> rows, int64_t count) {
  at::parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kAtOnce) {
      Sum* sum = output + first;
      const int64_t some = std::min(kAtOnce, end - first);
      for (size_t row = 0; row < rows.size(); ++row) {
        const Row* added = static_cast<const Row*>(rows[row]) + first;
        if (row == 0) {
          for (int64_t i = 0; i < some; ++i) sum[i] = static_cast<Sum>(added[i]);
        } else {
          for (int64_t i = 0; i < some; ++i) sum[i] += static_cast<Sum>(added[i]);
        }
      }
    }
  });
}

}  // namespace

void sum_rows(void* output, at::ScalarType dtype, std::span<const void* const> rows,
              at::ScalarType rows_dtype, int64_t count) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "sum_rows", [&] {
    using Sum = scalar_t;
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, rows_dtype, "sum_rows",
                                    [&] { sum_of<Sum, scalar_t>(static_cast<Sum*>(output), rows, count); });
  });
}

void sum_rows(const at::Tensor& output, const at::Tensor& received) {
  if (output.is_cpu()) {
    std::vector<const void*> rows;
    for (const at::Tensor& row : received.unbind(0)) rows.push_back(row.const_data_ptr());
    return sum_rows(output.mutable_data_ptr(), output.scalar_type(), rows, received.scalar_type(),
                    output.numel());
  }
  output.copy_(received.select(0, 0));
  for (int64_t row = 1; row < received.size(0); ++row) output.add_(received.select(0, row));
}

}  // namespace tessera::mesh
