// SPDX-License-Identifier: Apache-2.0
// What autograd does with a segment that is recomputed: forward keeps its inputs only; backward runs it again
// and differentiates that. recompute.h and ShardedModel say what a run is. Private to the room.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <vector>

namespace tessera::shard {

class RecomputedRun : public torch::CustomClassHolder {
 public:
  using Tensors = std::vector<at::Tensor>;
  /// Forward, in a mode without gradients.
  virtual Tensors run(const Tensors& inputs) = 0;
  /// The same in backward; switches gradients on.
  virtual Tensors run_again(const Tensors& inputs) = 0;
};

/// The outputs of run->run(inputs). They require a gradient where an input does, and where `trigger` does.
RecomputedRun::Tensors run_recomputed(const c10::intrusive_ptr<RecomputedRun>& run,
                                      const RecomputedRun::Tensors& inputs,
                                      const std::optional<at::Tensor>& trigger = {});

}  // namespace tessera::shard
