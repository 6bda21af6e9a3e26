// SPDX-License-Identifier: Apache-2.0
// What linear layers and convolutions keep of their input for backward. Private to the room.
//
// Note [Inputs made again]: backward needs a layer's input for the gradient of its weight alone. Where a norm
// or a GELU made it, that one keeps what it was made of, and making it again, of the same tensors by the same
// operation, gives the same bits: so the layer keeps nothing of its own. Either is a pass over [rows, in], a
// fraction 1 / out of the layer's products. Where memory is plentiful and such passes are dear, as on a GPU,
// the caller passes the rows as a plain tensor, and the layer keeps them (models::ForwardContext::
// keeps_activations).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <variant>

#include "tessera/ops/batch_norm.h"
#include "tessera/ops/gelu_output.h"
#include "tessera/ops/layer_norm.h"

namespace tessera::ops {

/// What made a layer's input, if it is to be made again.
using RecomputeFrom = std::optional<std::variant<LayerNormOutput, GeluOutput, BatchNormOutput>>;

/// In forward: saves `others` and the input `x`, or instead of it what it was made of.
void save_with_input(torch::autograd::AutogradContext* ctx, torch::autograd::variable_list others,
                     const at::Tensor& x, const RecomputeFrom& made);

/// In backward: that input, [..., in], of what was saved.
at::Tensor saved_input(torch::autograd::AutogradContext* ctx, const torch::autograd::variable_list& saved);
/// The same for a BatchNormOutput: the images as they were, [samples, channels, height, width].
at::Tensor saved_images(torch::autograd::AutogradContext* ctx, const torch::autograd::variable_list& saved);

}  // namespace tessera::ops
