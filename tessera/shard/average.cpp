// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/average.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace tessera::shard {

void average_over_ranks(const std::vector<at::Tensor>& tensors, mesh::Group& group) {
  if (group.size() == 1 || tensors.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> mine;
  for (const at::Tensor& tensor : tensors) {
    const bool counts = at::isFloatingType(tensor.scalar_type()) || group.rank() == 0;
    mine.push_back(counts ? tensor.reshape({-1}).to(at::kDouble)
                          : at::zeros({tensor.numel()}, tensor.options().dtype(at::kDouble)));
  }
  at::Tensor sums = at::cat(mine);
  group.all_reduce(sums, "mean of buffers");
  int64_t first = 0;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor sum = sums.narrow(0, first, tensor.numel()).view(tensor.sizes());
    first += tensor.numel();
    tensor.copy_(at::isFloatingType(tensor.scalar_type()) ? sum / group.size() : sum);
  }
}

}  // namespace tessera::shard
