// SPDX-License-Identifier: Apache-2.0
// ResMLP for LibTorch, with timm's parameter names.
#pragma once

#include "tessera/models/segmented_model.h"

namespace tessera::models {

/// Segments are the stem (patches to tokens), every block, and the head (affine, average, classifier).
class ResMlp : public SegmentedModel {
 public:
  /// `groups`: over whom the channel MLPs of its blocks are cut (SegmentedModel).
  explicit ResMlp(const arch::ResMlpConfig& config, const parallel::TensorGroups* groups = nullptr);
  ~ResMlp() override;
  const arch::ResMlpConfig& config() const { return config_; }

 private:
  arch::ResMlpConfig config_;
};

}  // namespace tessera::models
