#include "tessera/mesh/sum_rows.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

namespace tessera::mesh {
namespace {

// So many numbers at a time stay in the caches from row to row.
constexpr int64_t kAtOnce = 1 << 12, kOfLibTorch = 1 << 15;

template <typename T>
void sum_in_one_pass(const at::Tensor& output, const std::vector<at::Tensor>& rows) {
  at::parallel_for(0, output.numel(), kOfLibTorch, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kAtOnce) {
      float* sum = output.mutable_data_ptr<float>() + first;
      const int64_t count = std::min(kAtOnce, end - first);
      const auto of_row = [&](size_t row) { return rows[row].const_data_ptr<T>() + first; };
      std::copy_n(of_row(0), count, sum);
      for (size_t row = 1; row < rows.size(); ++row) {
        const T* added = of_row(row);
        for (int64_t i = 0; i < count; ++i) sum[i] += static_cast<float>(added[i]);
      }
    }
  });
}

void sum_by_libtorch(const at::Tensor& output, const std::vector<at::Tensor>& rows) {
  const int64_t n = output.numel(), most = output.is_cpu() ? kOfLibTorch : n;
  for (int64_t first = 0; first < n; first += most) {
    const int64_t some = std::min(most, n - first);
    at::Tensor sum = output.narrow(0, first, some);
    sum.copy_(rows[0].narrow(0, first, some));
    for (size_t row = 1; row < rows.size(); ++row) sum.add_(rows[row].narrow(0, first, some));
  }
}

}  // namespace

void sum_rows(const at::Tensor& output, const std::vector<at::Tensor>& rows) {
  const at::ScalarType dtype = rows[0].scalar_type();
  const bool plain = output.is_cpu() && output.scalar_type() == at::kFloat && output.is_contiguous();
  if (plain && dtype == at::kBFloat16) return sum_in_one_pass<at::BFloat16>(output, rows);
  if (plain && dtype == at::kFloat) return sum_in_one_pass<float>(output, rows);
  sum_by_libtorch(output, rows);
}

}  // namespace tessera::mesh
