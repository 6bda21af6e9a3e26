// SPDX-License-Identifier: Apache-2.0
// The fixed sin-cos 2-d position embedding.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/arch/vit.h"

namespace tessera::models {

/// [1, tokens, width] float32; zero for the class token and the registers. A patch at (row, column) has the
/// four quarters [sin(column * f), cos(column * f), sin(row * f), cos(row * f)] with f_i = 10000^(-i /
/// (width/4 - 1)): the embedding of MoCo v3 and of the "simple ViT" (timm has none of its own, but takes it
/// as a learned one). Requires: width % 4 == 0.
at::Tensor sin_cos_position_embedding(const arch::VitConfig& config);

}  // namespace tessera::models
