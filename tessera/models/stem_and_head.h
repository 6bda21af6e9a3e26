// SPDX-License-Identifier: Apache-2.0
// The two ends of a Vision Transformer: images to tokens, tokens to logits.
#pragma once

#include <optional>

#include "tessera/models/layers.h"

namespace tessera::models {

/// [batch, channels, image, image] in any float dtype -> [batch, tokens, width] in the parameters' dtype.
class Stem {
 public:
  Stem(const ParameterMap& map, const arch::VitConfig& config);
  at::Tensor forward(const at::Tensor& images, const ForwardContext& context);

 private:
  at::Tensor with_prefix(const at::Tensor& tokens) const;
  const at::Tensor& positions(at::ScalarType dtype, at::Device device);

  arch::VitConfig config_;
  at::Tensor class_token_, distillation_token_, registers_;  // undefined where the config has none
  at::Tensor position_embedding_;
  Linear projection_;           // weight [width, channels, patch, patch]
  at::Tensor fixed_positions_;  // a fixed embedding in the dtype and on the device last asked for
  Dropout dropout_;
};

/// timm's AttentionPoolLatent: one learned query attends to the patches, then a residual MLP.
class AttentionPool {
 public:
  AttentionPool(const ParameterScope& scope, const arch::VitConfig& config);
  at::Tensor forward(const at::Tensor& tokens) const;  // [batch, patches, width] -> [batch, width]

 private:
  int64_t heads_;
  at::Tensor latent_;  // [1, 1, width]
  Linear query_, key_value_, proj_;
  LayerNorm norm_;
  Linear fc1_, fc2_;
};

/// [batch, tokens, width] -> logits [batch, classes] float32 (float64 of float64): final norm, pool, dropout,
/// classifier. (With average pooling the norm comes after the pool, as timm's fc_norm, unless
/// norm_before_pool.) With a distillation token two classifiers read two tokens: the mean of their logits,
/// and while training both, side by side: [batch, 2 * classes].
class HeadEnd {
 public:
  HeadEnd(const ParameterMap& map, const arch::VitConfig& config);
  at::Tensor forward(const at::Tensor& tokens, const ForwardContext& context) const;

 private:
  at::Tensor pooled(const at::Tensor& tokens) const;  // [batch, width], normed
  at::Tensor of_two_tokens(const at::Tensor& tokens, const ForwardContext& context) const;

  arch::VitConfig config_;
  LayerNorm norm_;
  std::optional<AttentionPool> attention_pool_;
  Dropout dropout_;
  std::optional<Linear> pre_logits_;
  Linear classifier_;
  std::optional<Linear> distillation_classifier_;
};

}  // namespace tessera::models
