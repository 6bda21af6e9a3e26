// SPDX-License-Identifier: Apache-2.0
// Batch normalisation over the samples of all ranks (as torch.nn.SyncBatchNorm).
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "tessera/mesh/group.h"
#include "tessera/ops/batch_norm.h"

namespace tessera::shard {

/// The tensors of one norm, held as handles, and what it does with them.
struct BatchNorm {
  /// [samples, channels, height, width] in any floating dtype -> the same, with what follows. Statistics and
  /// arithmetic are float32. While training `running_*` and `num_batches_tracked` change, unless there is no
  /// sample: of the group, or without one of this rank. Ranks may hold different numbers of samples, none as
  /// well. With a group, training is collective: three all-reduces of at most 2 * channels numbers, two in
  /// forward and one in backward.
  at::Tensor forward(const at::Tensor& input, bool training, const ops::AfterNorm& after = {}) const;
  /// The same for a layer that makes its input again. (It is kept where the statistics are a group's.)
  ops::BatchNormOutput normed(const at::Tensor& input, bool training, bool relu) const;

  at::Tensor weight, bias;               // [channels], any floating dtype
  at::Tensor running_mean, running_var;  // [channels] float32
  at::Tensor num_batches_tracked;        // scalar, int64
  double epsilon = 1e-5, momentum = 0.1;
  mesh::Group* group = nullptr;  // whose samples count; null: this rank's

 private:
  bool alone(bool training) const { return !training || group == nullptr || group->size() == 1; }
  ops::BatchNorm counted(const at::Tensor& input, bool training) const;
};

/// Takes the place of torch::nn::BatchNorm2d in a module's own code, with its parameter and buffer names:
/// it computes as BatchNorm does. The group must outlive the module; null, or in evaluation: this rank's
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
