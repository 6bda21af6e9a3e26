// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "tessera/models/stem_and_head.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/linear.h"

namespace tessera::models {
AttentionPool::AttentionPool(const ParameterScope& scope, const arch::VitConfig& config)
    : heads_(config.heads),
      latent_(scope.get("latent")),
      query_(scope.child("q")),
      key_value_(scope.child("kv")),
      proj_(scope.child("proj")),
      norm_(scope.child("norm"), config.norm_epsilon),
      fc1_(scope.child("mlp").child("fc1")),
      fc2_(scope.child("mlp").child("fc2")) {}

at::Tensor AttentionPool::forward(const at::Tensor& tokens) const {
  const int64_t batch = tokens.size(0), width = tokens.size(2);
  const at::Tensor query = query_(latent_).expand({batch, -1, -1});
  const at::Tensor x = proj_(ops::cross_attention(query, key_value_(tokens), heads_)).view({batch, width});
  return ops::linear_add(ops::linear_gelu(norm_(x), fc1_.weight, fc1_.bias), fc2_.weight, fc2_.bias, x);
}

HeadEnd::HeadEnd(const ParameterMap& map, const arch::VitConfig& config)
    : config_(config),
      norm_(ParameterScope(map, config.norm_after_pool() ? "fc_norm." : "norm."), config.norm_epsilon),
      dropout_(config.dropout, "head_drop"),
      classifier_(ParameterScope(map, "head.")) {
  if (config.pool == arch::Pool::kAttention) {
    attention_pool_.emplace(ParameterScope(map, "attn_pool."), config);
  }
  if (config.head == arch::Head::kTanh) {
    pre_logits_.emplace(ParameterScope(map, "pre_logits.fc."));
  }
  if (config.distillation_token) {
    distillation_classifier_.emplace(ParameterScope(map, "head_dist."));
  }
}

at::Tensor HeadEnd::forward(const at::Tensor& tokens, const ForwardContext& context) const {
  if (context.observe) {
    // timm norms all tokens, unless they are averaged first.
    context.observe("tokens", config_.pool == arch::Pool::kAverage ? tokens : norm_(tokens));
  }
  if (distillation_classifier_) return of_two_tokens(tokens, context);
  at::Tensor x = pooled(tokens);
  if (context.observe && !pre_logits_) context.observe("features", x);
  x = dropout_(x, context);
  if (pre_logits_) {
    x = (*pre_logits_)(x).tanh();
    if (context.observe) context.observe("features", x);
  }
  return in_float32(classifier_(x));
}

at::Tensor HeadEnd::of_two_tokens(const at::Tensor& tokens, const ForwardContext& context) const {
  at::Tensor x = norm_(tokens.slice(1, 0, 2));                  // [batch, 2, width]
  if (context.observe) context.observe("features", x.mean(1));  // as timm's forward_head(pre_logits=True)
  x = dropout_(x, context);
  const at::Tensor classes = in_float32(classifier_(x.select(1, 0)));
  const at::Tensor distilled = in_float32((*distillation_classifier_)(x.select(1, 1)));
  return context.training ? at::cat({classes, distilled}, 1) : (classes + distilled) / 2;
}

at::Tensor HeadEnd::pooled(const at::Tensor& tokens) const {
  if (config_.pool == arch::Pool::kClassToken) {
    return norm_(tokens.select(1, 0));  // timm norms every token first and then drops all but this one
  }
  const at::Tensor patches = tokens.slice(1, config_.prefix_tokens());
  if (config_.norm_after_pool()) return norm_(patches.mean(1));
  return attention_pool_ ? attention_pool_->forward(norm_(patches)) : norm_(patches).mean(1);
}

}  // namespace tessera::models
