// SPDX-License-Identifier: Apache-2.0
// The first convolution of a network for images with another number of channels. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera::weights {

/// Kernels [out, from, area] as [out, to, area], as timm's adapt_input_conv: one channel is the sum of all;
/// of several, channel c is channel c % from times from / to. So an image whose channels are all alike gives
/// what it gave, where `to` is 1 or a multiple of `from`. The same number: unchanged. Requires: from, to >=
/// 1, weights of a whole number of kernels.
std::vector<float> adapt_channels(std::span<const float> kernels, int64_t from, int64_t to, int64_t area);
/// What that did, for people: "3 -> 1 channels, summed".
std::string describe_channels(int64_t from, int64_t to);

/// Mean or standard deviation of each channel (or one number for all) for another number of channels: their
/// average, one number for all.
std::vector<float> adapt_pixels(const std::vector<float>& of_channels);

}  // namespace tessera::weights
