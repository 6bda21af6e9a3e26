// SPDX-License-Identifier: Apache-2.0
// Clipping by the norm of the whole gradient.
#pragma once

#include <algorithm>

namespace tessera::shard {

/// What gradients of this norm are multiplied by so that it becomes at most `max_norm`. As
/// torch.nn.utils.clip_grad_norm_: max_norm / (norm + 1e-6), at most 1; 1 where the norm is not a number.
inline double clip_scale(double max_norm, double norm) { return std::min(1.0, max_norm / (norm + 1e-6)); }

}  // namespace tessera::shard
