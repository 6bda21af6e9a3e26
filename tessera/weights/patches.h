// SPDX-License-Identifier: Apache-2.0
// Patch embeddings for patches of another size. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::weights {

/// Square kernels of `from` pixels a side as ones of `to`: those that answer to patches resized with the
/// bicubic filter as nearly as can be (in the mean of squares, over all patches) as the kernels did to the
/// patches themselves. Beyer et al., FlexiViT, arXiv 2212.08013, section 3.4: w' = (B^T)^+ w, B being the
/// resize. timm's resample_patch_embed. The same size: unchanged. Requires: from, to >= 1, whole kernels.
std::vector<float> resample_patches(std::span<const float> kernels, int64_t from, int64_t to);

}  // namespace tessera::weights
