// SPDX-License-Identifier: Apache-2.0
// Everything that happens to one training image between its geometry and its batch, in timm's order: crop,
// flip, [policy, colour jitter], normalise, [erasing]; in brackets what is done here. Const calls are safe
// from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/data/augment/erasing.h"
#include "tessera/data/augment/options.h"
#include "tessera/data/augment/policy.h"

namespace tessera::data {

class Augmenter {
 public:
  /// `mean`: of the normalisation, 0..1, one or one a channel: timm's policies fill with it. `filter`: of
  /// warps. Errors: UserError on a policy or numbers that cannot be read.
  Augmenter(const AugmentOptions& options, const std::vector<float>& mean, Filter filter);

  /// False: image() changes nothing.
  bool changes_images() const { return policy_ != nullptr || jitter_ != nullptr; }
  /// Policy, then colour jitter, drawn from streams of `key`. In place; size and channels stay.
  void image(uint64_t key, Image* image) const;
  /// Erases boxes of normalised numbers [channels, height, width], drawn from a stream of `key`.
  void numbers(uint64_t key, int64_t channels, int64_t height, int64_t width, float* numbers) const;
  /// What numbers() would overwrite, and with what.
  std::vector<Erasure> erasures(uint64_t key, int64_t channels, int64_t height, int64_t width) const;

 private:
  std::shared_ptr<const Policy> policy_, jitter_;  // null: off; shared so that copies are cheap
  Erasing erasing_;
};

}  // namespace tessera::data
