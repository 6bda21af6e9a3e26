// SPDX-License-Identifier: Apache-2.0
// What a ResNet computes and what it keeps for backward. docs/memory.md derives every term.
#include <algorithm>
#include <numeric>

#include "tessera/arch/resnet.h"

namespace tessera::arch {
namespace {

constexpr double kIndexBytes = 8;

double map(int64_t channels, int64_t size) {
  return static_cast<double>(channels) * static_cast<double>(size) * static_cast<double>(size);
}

/// Sizes of the stem's maps, in pixels.
struct StemSizes {
  explicit StemSizes(const ResNetConfig& config)
      : convolved((config.image_size - 1) / 2 + 1), pooled((convolved - 1) / 2 + 1) {}
  int64_t convolved, pooled;
};

/// Multiply-adds of a convolution: every element of its output reads in * kernel^2 others.
double macs(int64_t in, int64_t out, int64_t kernel, int64_t out_size) {
  return map(out, out_size) * static_cast<double>(in * kernel * kernel);
}

double block_macs(const ResNetConfig& config, const ResNetBlock& block) {
  double sum = block.projects() ? macs(block.in, block.out, 1, block.out_size) : 0;
  if (config.bottleneck) {
    sum += macs(block.in, block.width, 1, block.in_size) + macs(block.width, block.width, 3, block.out_size) +
           macs(block.width, block.out, 1, block.out_size);
  } else {
    sum += macs(block.in, block.width, 3, block.out_size) + macs(block.width, block.out, 3, block.out_size);
  }
  return sum;
}

}  // namespace

std::vector<double> unit_flops(const ResNetConfig& config) {
  std::vector<double> flops = {2 * macs(config.channels, config.base_width, 7, StemSizes(config).convolved)};
  for (const ResNetBlock& block : blocks(config)) flops.push_back(2 * block_macs(config, block));
  flops.push_back(2 * static_cast<double>(config.features() * config.classes));
  return flops;
}

double forward_flops(const ResNetConfig& config) {
  const std::vector<double> flops = unit_flops(config);
  return std::accumulate(flops.begin(), flops.end(), 0.0);
}

// Nothing of a ResNet is cut.
Exchanges exchanges(const ResNetConfig& /*config*/, size_t /*index*/) { return {}; }

Activations activations(const ResNetConfig& config, double c, bool /*keeps_activations*/,
                        const std::vector<TensorShare>& /*shares*/) {
  Activations result;
  // A BatchNorm keeps what it read; across ranks it keeps that normalised, in fp32.
  const double norm = config.batch_norm_sync ? kFloatBytes : c;
  const StemSizes stem(config);
  const double image = map(config.channels, config.image_size),
               first = map(config.base_width, stem.convolved);
  const double copy = c < kFloatBytes ? c * image : 0;
  const double stem_all = copy + (norm + c) * first + kIndexBytes * map(config.base_width, stem.pooled);
  result.units.push_back({copy, stem_all, stem_all - copy});
  double largest = first;
  int64_t last_size = stem.pooled;
  for (const ResNetBlock& block : blocks(config)) {
    const double in = map(block.in, block.in_size), out = map(block.out, block.out_size);
    const double narrow = map(block.width, block.out_size);
    // Each convolution's output (read by its norm) and, but for the last one's, the ReLU's.
    double inner = norm * out + (norm + c) * narrow;
    if (config.bottleneck) inner += (norm + c) * map(block.width, block.in_size);
    if (block.projects()) inner += norm * out;
    // The last ReLU keeps its output, which is the next unit's input.
    result.units.push_back({c * in, c * in + inner, inner + c * out});
    largest = std::max({largest, in, out});
    last_size = block.out_size;
  }
  const double features = static_cast<double>(config.features());
  const double input = c * map(config.features(), last_size);
  const double logits = 2 * kFloatBytes * static_cast<double>(config.classes);
  const double head = input + c * features + logits;
  result.units.push_back({input, head, head - input});
  result.working = result.working_on_gpu =
      std::max(2 * c * largest, logits);  // their gradients, where there are so many
  return result;
}

}  // namespace tessera::arch
