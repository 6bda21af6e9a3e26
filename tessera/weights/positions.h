// SPDX-License-Identifier: Apache-2.0
// Position embeddings for another number of patches. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera::weights {

enum class Resampling {
  kBicubic,  // antialiased, Keys' a = -1/2: timm's resample_abs_pos_embed (torch interpolate, antialias=True)
  kLinear    // corners stay corners: scipy.ndimage.zoom(order=1), as Google's and Rosetta's ViT do
};

/// "bicubic", "linear". Errors: UserError that names the nearest.
Resampling resampling_of(const std::string& name);
std::string to_string(Resampling how);

/// Rows [from * from, width] of a square of patches, row by row, as [to * to, width]. The same size:
/// unchanged. Requires: from, to >= 1.
std::vector<float> resample_positions(std::span<const float> rows, int64_t from, int64_t to, int64_t width,
                                      Resampling how);

}  // namespace tessera::weights
