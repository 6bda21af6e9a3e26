// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/augment/augmenter.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/random.h"

namespace tessera::data {
namespace {

Fill levels_of(const std::vector<float>& mean) {
  Fill fill = {0, 0, 0};
  for (size_t c = 0; c < fill.size() && !mean.empty(); ++c) {
    const float level = std::nearbyint(255.0F * mean[std::min(c, mean.size() - 1)]);
    fill[c] = static_cast<uint8_t>(std::clamp(level, 0.0F, 255.0F));
  }
  return fill;
}

void run(const Policy& policy, uint64_t key, Image* image) {
  Draws draws(key);
  for (const Operation& operation : policy.draw(draws, image->width, image->height)) {
    apply(operation, policy.style(), image);
  }
}

}  // namespace

Augmenter::Augmenter(const AugmentOptions& options, const std::vector<float>& mean, Filter filter)
    : erasing_(options) {
  if (!options.policy.empty()) {
    policy_ = parse_policy(options.policy, {filter, options.random_interpolation, levels_of(mean)});
  }
  if (!options.color_jitter.empty()) jitter_ = color_jitter(options.color_jitter);
}

void Augmenter::image(uint64_t key, Image* image) const {
  if (policy_) run(*policy_, random_key(key, "policy"), image);
  if (jitter_) run(*jitter_, random_key(key, "color jitter"), image);
}

void Augmenter::numbers(uint64_t key, int64_t channels, int64_t height, int64_t width, float* numbers) const {
  if (erasing_.on()) erasing_.apply(random_key(key, "erasing"), channels, height, width, numbers);
}

std::vector<Erasure> Augmenter::erasures(uint64_t key, int64_t channels, int64_t height,
                                         int64_t width) const {
  if (!erasing_.on()) return {};
  return erasing_.erasures(random_key(key, "erasing"), channels, height, width);
}

}  // namespace tessera::data
