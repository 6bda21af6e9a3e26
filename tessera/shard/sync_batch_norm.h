// Batch normalisation over the samples of all ranks (as torch.nn.SyncBatchNorm).
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "tessera/mesh/group.h"

namespace tessera::shard {

/// Takes the place of torch::nn::BatchNorm2d in a module's own code, with its parameter and buffer names:
/// input and output [samples, channels, height, width], any floating dtype; statistics and parameters
/// float32. Ranks may hold different numbers of samples. Three all-reduces of at most 2 * channels numbers,
/// two in forward and one in backward. The group must outlive the module; null, or in evaluation: this rank's
/// statistics alone.
class SyncBatchNorm2dImpl : public torch::nn::Module {
 public:
  explicit SyncBatchNorm2dImpl(int64_t channels, mesh::Group* group = nullptr, double eps = 1e-5,
                               double momentum = 0.1);
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight, bias;               // [channels]
  at::Tensor running_mean, running_var;  // [channels]
  at::Tensor num_batches_tracked;        // scalar, int64

 private:
  mesh::Group* group_;
  double eps_, momentum_;
};
TORCH_MODULE(SyncBatchNorm2d);

}  // namespace tessera::shard
