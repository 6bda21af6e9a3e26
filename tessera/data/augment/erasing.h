// SPDX-License-Identifier: Apache-2.0
// Random erasing (Zhong et al., arXiv 1708.04896), as timm's RandomErasing: boxes of normalised numbers are
// overwritten. Const calls are safe from any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/data/augment/draws.h"
#include "tessera/data/augment/options.h"
#include "tessera/data/resize.h"
#include "tessera/data/uint8_images.h"

namespace tessera::data {

/// A box of `area` pixels and aspect height / width `aspect`; false where it does not lie strictly inside.
bool erasing_size(double area, double aspect, int64_t width, int64_t height, Box* box);

/// Where a picture is erased, and the stream of numbers that what fills the box comes from.
struct ErasedBox {
  Box box;
  uint64_t noise = 0;
};

class Erasing {
 public:
  /// Errors: UserError on values out of range.
  explicit Erasing(const AugmentOptions& options);

  bool on() const { return options_.erasing > 0; }
  /// `numbers`: [channels, height, width], normalised. Zeros, one normal number a channel, or normal noise.
  void apply(uint64_t key, int64_t channels, int64_t height, int64_t width, float* numbers) const;
  /// The same boxes with what fills them, for who applies it elsewhere.
  std::vector<Erasure> erasures(uint64_t key, int64_t channels, int64_t height, int64_t width) const;

 private:
  std::vector<ErasedBox> boxes(uint64_t key, int64_t height, int64_t width) const;

  const AugmentOptions options_;
};

}  // namespace tessera::data
