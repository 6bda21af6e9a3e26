// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/cut_branch.h"

#include <ATen/ATen.h>

#include "tessera/base/error.h"

namespace tessera::models {

const parallel::GroupSamples& CutBranch::samples(const ForwardContext& context) const {
  TESSERA_CHECK(group_->index() < context.tensor_groups.size(), name_,
                ": the context does not say which samples the ranks of its tensor group hold");
  return context.tensor_groups[group_->index()];
}

at::Tensor CutBranch::operator()(ops::LayerNormOutput own, const parallel::Summands& summands,
                                 const ForwardContext& context, const PartialLayers& layers) const {
  const parallel::GroupSamples& samples = this->samples(context);
  ops::LayerNormOutput rows{{}, {}, group_->enter(own.rows, samples, name_)};
  own = {};  // what the norm made is not needed from here on
  return group_->leave(layers(std::move(rows)), summands, samples, name_);
}

at::Tensor nothing_of(const at::Tensor& rows, const std::vector<at::Tensor>& parameters) {
  at::Tensor zeros = rows * 0;
  for (const at::Tensor& parameter : parameters) zeros = zeros + parameter.sum() * 0;
  return zeros;
}

}  // namespace tessera::models
