// SPDX-License-Identifier: Apache-2.0
// The Vision Transformer for LibTorch, with timm's parameter names.
#pragma once

#include "tessera/models/segmented_model.h"

namespace tessera::models {

class VisionTransformer : public SegmentedModel {
 public:
  /// `groups`: over whom the layers of its blocks are cut (SegmentedModel).
  explicit VisionTransformer(const arch::VitConfig& config, const parallel::TensorGroups* groups = nullptr);
  ~VisionTransformer() override;
  const arch::VitConfig& config() const { return config_; }

 private:
  arch::VitConfig config_;
};

}  // namespace tessera::models
