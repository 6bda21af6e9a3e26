// SPDX-License-Identifier: Apache-2.0
// ResNet for LibTorch, with torchvision's parameter and buffer names.
#pragma once

#include "tessera/models/segmented_model.h"

namespace tessera::models {

/// Segments are the stem (convolution, norm, pool), every block, and the head (average, classifier). While
/// training the running statistics follow the batches that forward is given; a batch without samples leaves
/// them, and a second run in recomputation is the caller's to hide (Segment::buffers).
class ResNet : public SegmentedModel {
 public:
  /// `statistics`: whose samples the norms count while training, must outlive the model; null: this rank's.
  explicit ResNet(const arch::ResNetConfig& config, mesh::Group* statistics = nullptr);
  ~ResNet() override;
  const arch::ResNetConfig& config() const { return config_; }

 private:
  arch::ResNetConfig config_;
};

}  // namespace tessera::models
