// SPDX-License-Identifier: Apache-2.0
// A branch of a block whose layers several ranks hold together. The layers themselves are written as for one
// rank, and do not communicate.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "tessera/models/segment.h"
#include "tessera/ops/layer_norm.h"
#include "tessera/ops/linear.h"
#include "tessera/parallel/tensor_group.h"

namespace tessera::models {

/// What this rank's share of the layers makes of the group's rows of some samples, [samples, ..., width],
/// without the last layer's bias: partial sums. It must depend on the rows in autograd's graph (nothing_of),
/// as backward communicates as well. `use`: of the last layer; unread in a second run whose sum is known.
using PartialLayers =
    std::function<at::Tensor(ops::LayerNormOutput rows, const parallel::GroupSamples& samples, ops::Use use)>;

class CutBranch {
 public:
  /// `group`: null where the layers are not cut. `name`: of the branch, for errors.
  CutBranch(const parallel::TensorGroup* group, std::string name) : group_(group), name_(std::move(name)) {}
  bool is_cut() const { return group_ != nullptr; }
  /// Sums of `layers` over the ranks, for this rank's samples, with the summands. Requires: is_cut().
  at::Tensor operator()(ops::LayerNormOutput own, const parallel::Summands& summands,
                        const ForwardContext& context, const PartialLayers& layers) const;
  /// Nothing that backward needs reads the sum of a second run (ForwardContext::sums), which then may have
  /// any values. The sum has the shape of the rows.
  CutBranch& without_value_again() {
    value_again_ = false;
    return *this;
  }

 private:
  const parallel::GroupSamples& samples(const ForwardContext& context) const;
  at::Tensor known_sum(const at::Tensor& rows, const ForwardContext& context) const;

  const parallel::TensorGroup* group_;
  std::string name_;
  bool value_again_ = true;
};

/// The partial sums of a rank that has no share of the layers: zeros, [samples of the group, tokens, width],
/// which depend on the rows and on the layers' parameters. So every rank's backward pass makes the same
/// exchanges, and brings gradients of the same parameters, in one order.
at::Tensor nothing_of(ops::LayerNormOutput rows, int64_t tokens, const std::vector<at::Tensor>& parameters);

}  // namespace tessera::models
