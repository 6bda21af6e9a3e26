// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/layers.h"

#include <ATen/ATen.h>

#include "tessera/base/random.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/few_query_attention.h"
#include "tessera/ops/fp8_linear.h"
#include "tessera/ops/gelu.h"
#include "tessera/ops/host_values.h"
#include "tessera/ops/linear.h"
#include "tessera/ops/mlp.h"
#include "tessera/ops/random_mask.h"

namespace tessera::models {
namespace {

ParameterScope block_scope(const ParameterMap& map, int64_t block) {
  return {map, "blocks." + std::to_string(block) + "."};
}

std::string block_name(int64_t block, const char* part) {
  return "blocks." + std::to_string(block) + "." + part;
}

std::vector<LayerNorm> qk_norms(const ParameterScope& attention, const arch::VitConfig& config) {
  if (!config.qk_norm) {
    return {};
  }
  return {LayerNorm(attention.child("q_norm"), config.norm_epsilon),
          LayerNorm(attention.child("k_norm"), config.norm_epsilon)};
}

}  // namespace

at::Tensor Linear::operator()(const at::Tensor& x) const { return ops::linear(x, weight, bias); }

at::Tensor Linear::in_block(const at::Tensor& x, const ForwardContext& context) const {
  return context.fp8 ? ops::fp8_linear(x, weight, bias) : ops::linear(x, weight, bias);
}

at::Tensor Linear::then_gelu(const at::Tensor& x, const ForwardContext& context) const {
  return context.fp8 ? ops::exact_gelu(ops::fp8_linear(x, weight, bias)) : ops::linear_gelu(x, weight, bias);
}

at::Tensor Linear::in_block(const ops::LayerNormOutput& x, const ForwardContext& context) const {
  if (context.keeps_activations) return in_block(x.rows, context);
  return context.fp8 ? ops::fp8_linear(x, weight, bias) : ops::linear(x, weight, bias);
}

at::Tensor Linear::then_gelu(const ops::LayerNormOutput& x, const ForwardContext& context) const {
  if (context.keeps_activations) return then_gelu(x.rows, context);
  return context.fp8 ? ops::exact_gelu(ops::fp8_linear(x, weight, bias)) : ops::linear_gelu(x, weight, bias);
}

at::Tensor Linear::then_add(const at::Tensor& x, const at::Tensor& residual,
                            const ForwardContext& context) const {
  return context.fp8 ? residual + ops::fp8_linear(x, weight, bias)
                     : ops::linear_add(x, weight, bias, residual);
}

std::pair<Linear, Linear> Linear::split(int64_t outputs) const {
  const std::vector<int64_t> sizes = {outputs, weight.size(0) - outputs};
  // One operation's views: backward joins the gradients of both in one copy.
  const auto weights = weight.split_with_sizes(sizes), biases = bias.split_with_sizes(sizes);
  return {{weights[0], biases[0]}, {weights[1], biases[1]}};
}

at::Tensor Dropout::operator()(const at::Tensor& x, const ForwardContext& context) const {
  if (!active(context) || x.numel() == 0) return x;
  const int64_t elements = x.numel() / x.size(0);
  const at::Tensor mask = ops::host_values(x.device(), [this, &context, elements, dtype = x.scalar_type()] {
    return ops::dropout_mask(rate, random_key(context.key, name), context.samples, elements, dtype);
  });
  return x * mask.view(x.sizes());
}

at::Tensor Residual::operator()(const at::Tensor& x, const at::Tensor& branch,
                                const ForwardContext& context) const {
  if (!drop_path.active(context)) {
    return gamma.defined() ? at::addcmul(x, branch, gamma) : x + branch;
  }
  const at::Tensor mask = ops::host_values(x.device(), [this, &context, dtype = x.scalar_type()] {
    return ops::drop_path_mask(drop_path.rate, random_key(context.key, drop_path.name), context.samples,
                               dtype);
  });
  return at::addcmul(x, gamma.defined() ? branch * gamma : branch, mask.view({-1, 1, 1}));
}

// The cast is part of the unfolding copy.
at::Tensor unfold_patches(const at::Tensor& images, int64_t patch, at::ScalarType dtype) {
  const int64_t batch = images.size(0), channels = images.size(1), grid = images.size(2) / patch;
  return images.reshape({batch, channels, grid, patch, grid, patch})
      .permute({0, 2, 4, 1, 3, 5})
      .to(dtype, false, false, at::MemoryFormat::Contiguous)
      .reshape({batch, grid * grid, channels * patch * patch});
}

AttentionBranch::AttentionBranch(const ParameterMap& map, const arch::VitConfig& config, int64_t block,
                                 double drop_path)
    : heads_(config.heads),
      read_(block + 1 == config.depth ? config.tokens_read() : config.tokens()),
      norm_(block_scope(map, block).child("norm1"), config.norm_epsilon),
      qkv_(block_scope(map, block).child("attn").child("qkv")),
      proj_(block_scope(map, block).child("attn").child("proj")),
      qk_norms_(qk_norms(block_scope(map, block).child("attn"), config)),
      proj_dropout_(config.dropout, block_name(block, "attn.proj_drop")),
      residual_(block_scope(map, block).find("ls1.gamma"), drop_path, block_name(block, "drop_path1")) {}

std::pair<at::Tensor, at::Tensor> AttentionBranch::forward(const at::Tensor& given,
                                                           const ForwardContext& context) const {
  ops::LayerNormOutput normed = ops::normed(given, norm_);
  const bool all = read_ >= given.size(1) || context.every_token;
  const at::Tensor x = all ? normed.x : normed.x.narrow(1, 0, read_);
  const at::Tensor mixed = all ? of_all(std::move(normed), context) : of_first(std::move(normed), context);
  if (!residual_.plain(context)) {
    return {residual_(x, proj_dropout_(proj_.in_block(mixed, context), context), context), {}};
  }
  // A product adds it, or else the next norm, which reads the sum anyway.
  if (!context.fp8 && !proj_dropout_.active(context)) return {proj_.then_add(mixed, x, context), {}};
  return {x, proj_dropout_(proj_.in_block(mixed, context), context)};
}

at::Tensor AttentionBranch::of_all(ops::LayerNormOutput normed, const ForwardContext& context) const {
  if (qk_norms_.empty() && !context.fp8) {
    return ops::self_attention(std::move(normed), qkv_.weight, qkv_.bias, heads_, context.keeps_activations);
  }
  const at::Tensor qkv = qkv_.in_block(normed, context);  // [batch, tokens, 3 * width]
  normed.rows.reset();                                    // its memory is free from here on
  if (qk_norms_.empty()) return ops::self_attention(qkv, heads_);
  const auto parts = heads_of(qkv, 3);
  return ops::attention(qk_norms_[0](parts[0]), qk_norms_[1](parts[1]), parts[2]);
}

at::Tensor AttentionBranch::of_first(ops::LayerNormOutput normed, const ForwardContext& context) const {
  // (A key that is normed, or rounded to fp8, has to be made.)
  if (qk_norms_.empty() && !context.fp8) {
    return ops::few_query_attention(std::move(normed), qkv_.weight, qkv_.bias, heads_, read_);
  }
  const auto [query, key_value] = qkv_.split(qkv_.weight.size(0) / 3);
  // A copy, as whoever keeps it for backward would keep all rows with a view.
  const at::Tensor rows = normed.rows.narrow(1, 0, read_).clone(at::MemoryFormat::Contiguous);
  const at::Tensor q = query.in_block(rows, context);         // [batch, read, width]
  const at::Tensor kv = key_value.in_block(normed, context);  // [batch, tokens, 2 * width]
  normed.rows.reset();
  if (qk_norms_.empty()) return ops::cross_attention(q, kv, heads_);
  const auto parts = heads_of(kv, 2);
  return ops::attention(qk_norms_[0](heads_of(q, 1)[0]), qk_norms_[1](parts[0]), parts[1]);
}

std::vector<at::Tensor> AttentionBranch::heads_of(const at::Tensor& packed, int64_t parts) const {
  const int64_t head_width = packed.size(2) / parts / heads_;
  return packed.view({packed.size(0), packed.size(1), parts, heads_, head_width}).unbind(2);
}

MlpBranch::MlpBranch(const ParameterMap& map, const arch::VitConfig& config, int64_t block, double drop_path)
    : norm_(block_scope(map, block).child("norm2"), config.norm_epsilon),
      fc1_(block_scope(map, block).child("mlp").child("fc1")),
      fc2_(block_scope(map, block).child("mlp").child("fc2")),
      dropout1_(config.dropout, block_name(block, "mlp.drop1")),
      dropout2_(config.dropout, block_name(block, "mlp.drop2")),
      residual_(block_scope(map, block).find("ls2.gamma"), drop_path, block_name(block, "drop_path2")) {}

at::Tensor MlpBranch::forward(const at::Tensor& of, const at::Tensor& added,
                              const ForwardContext& context) const {
  ops::LayerNormOutput normed = ops::normed(of, norm_, added);
  const at::Tensor x = normed.x;
  const bool plain = residual_.plain(context) && !dropout2_.active(context);
  const auto residual = [&](const at::Tensor& branch) {
    return plain ? branch : residual_(x, dropout2_(branch, context), context);
  };
  if (!context.fp8 && !dropout1_.active(context)) {
    return residual(ops::mlp(std::move(normed), fc1_.weight, fc1_.bias, fc2_.weight, fc2_.bias,
                             plain ? x : at::Tensor(), context.keeps_activations));
  }
  if (!dropout1_.active(context)) {  // in fp8
    const ops::GeluOutput hidden = ops::gelu_output(fc1_.in_block(normed, context));
    normed.rows.reset();
    const at::Tensor branch = context.keeps_activations ? ops::fp8_linear(hidden.rows, fc2_.weight, fc2_.bias)
                                                        : ops::fp8_linear(hidden, fc2_.weight, fc2_.bias);
    return plain ? x + branch : residual(branch);
  }
  const at::Tensor hidden = dropout1_(fc1_.then_gelu(normed, context), context);
  normed.rows.reset();
  return residual(plain ? fc2_.then_add(hidden, x, context) : fc2_.in_block(hidden, context));
}

}  // namespace tessera::models
