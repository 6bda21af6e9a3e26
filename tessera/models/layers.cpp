// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/layers.h"

#include <ATen/ATen.h>

#include "tessera/arch/cut.h"
#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/device/host_values.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/few_query_attention.h"
#include "tessera/ops/fp8_linear.h"
#include "tessera/ops/gelu.h"
#include "tessera/ops/linear.h"
#include "tessera/ops/mlp.h"

namespace tessera::models {
namespace {

ParameterScope block_scope(const ParameterMap& map, int64_t block) {
  return {map, "blocks." + std::to_string(block) + "."};
}

/// Heads of this rank.
int64_t heads_of_rank(int64_t heads, const parallel::TensorGroup* group) {
  return group == nullptr ? heads : arch::items_of(heads, group->size(), group->rank()).size();
}

/// Hidden units of this rank.
ops::MaskColumns hidden_of_rank(int64_t hidden, const parallel::TensorGroup* group) {
  if (group == nullptr) return {0, hidden, hidden};
  const DimRange mine = arch::hidden_range(hidden, group->size(), group->rank());
  return {mine.begin, mine.size(), hidden};
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
  return context.fp8 ? ops::fp8_linear(x, weight, bias, use) : ops::linear(x, weight, bias, use);
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

Linear Linear::without_bias(ops::Use then) const {
  Linear partial(weight, at::zeros({weight.size(0)}, weight.options()));
  partial.use = then;
  return partial;
}

at::Tensor Dropout::operator()(const at::Tensor& x, const ForwardContext& context) const {
  if (!active(context) || x.numel() == 0) return x;
  const int64_t elements = x.numel() / x.size(0);
  const at::Tensor mask =
      device::host_values(x.device(), [this, &context, elements, dtype = x.scalar_type()] {
        return ops::dropout_mask(rate, random_key(context.key, name), context.samples, elements, dtype);
      });
  return x * mask.view(x.sizes());
}

at::Tensor Dropout::of_columns(const at::Tensor& x, const ops::MaskColumns& columns,
                               const std::vector<uint64_t>& samples, const ForwardContext& context) const {
  if (!active(context) || x.numel() == 0) return x;
  // HostValues would call `make` again when the samples of this pass are gone.
  TESSERA_CHECK(!device::host_values_are_kept(), name, ": passes of a tensor group are not recorded");
  const auto make = [this, &context, &samples, columns, rows = x.size(1), dtype = x.scalar_type()] {
    return ops::dropout_mask_columns(rate, random_key(context.key, name), samples, rows, columns, dtype);
  };
  return x * device::host_values(x.device(), make);
}

at::Tensor Residual::operator()(const at::Tensor& x, const at::Tensor& branch,
                                const ForwardContext& context) const {
  if (!drop_path.active(context)) {
    return gamma.defined() ? at::addcmul(x, branch, gamma) : x + branch;
  }
  const at::Tensor mask = device::host_values(x.device(), [this, &context, dtype = x.scalar_type()] {
    return ops::drop_path_mask(drop_path.rate, random_key(context.key, drop_path.name), context.samples,
                               dtype);
  });
  return at::addcmul(x, gamma.defined() ? branch * gamma : branch, mask.view({-1, 1, 1}));
}

at::Tensor in_float32(const at::Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
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
                                 double drop_path, const parallel::TensorGroup* group)
    : cut_(group, block_name(block, "attn")),
      heads_(heads_of_rank(config.heads, group)),
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
  if (cut_.is_cut()) {
    const auto partial = [&](ops::LayerNormOutput rows, const parallel::GroupSamples& /*samples*/,
                             ops::Use use) {
      if (heads_ == 0) return without_heads(std::move(rows), x.size(1));
      const at::Tensor mixed = all ? of_all(std::move(rows), context) : of_first(std::move(rows), context);
      return proj_.without_bias(use).in_block(mixed, context);
    };
    const bool plain = residual_.plain(context) && !proj_dropout_.active(context);
    const at::Tensor sum = cut_(std::move(normed), {proj_.bias, plain ? x : at::Tensor()}, context, partial);
    return {plain ? sum : residual_(x, proj_dropout_(sum, context), context), {}};
  }
  const at::Tensor mixed = all ? of_all(std::move(normed), context) : of_first(std::move(normed), context);
  if (!residual_.plain(context)) {
    return {residual_(x, proj_dropout_(proj_.in_block(mixed, context), context), context), {}};
  }
  // A product adds it, or else the next norm, which reads the sum anyway.
  if (!context.fp8 && !proj_dropout_.active(context)) return {proj_.then_add(mixed, x, context), {}};
  return {x, proj_dropout_(proj_.in_block(mixed, context), context)};
}

at::Tensor AttentionBranch::without_heads(ops::LayerNormOutput rows, int64_t tokens) const {
  std::vector<at::Tensor> parameters = {qkv_.weight, qkv_.bias, proj_.weight};
  for (const LayerNorm& norm : qk_norms_) parameters.insert(parameters.end(), {norm.weight, norm.bias});
  return nothing_of(std::move(rows), tokens, parameters);
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

MlpBranch::MlpBranch(const ParameterMap& map, const arch::VitConfig& config, int64_t block, double drop_path,
                     const parallel::TensorGroup* group)
    : cut_(group, block_name(block, "mlp")),
      hidden_(hidden_of_rank(config.mlp_width, group)),
      norm_(block_scope(map, block).child("norm2"), config.norm_epsilon),
      fc1_(block_scope(map, block).child("mlp").child("fc1")),
      fc2_(block_scope(map, block).child("mlp").child("fc2")),
      dropout1_(config.dropout, block_name(block, "mlp.drop1")),
      dropout2_(config.dropout, block_name(block, "mlp.drop2")),
      residual_(block_scope(map, block).find("ls2.gamma"), drop_path, block_name(block, "drop_path2")) {
  // A block's last sum: only the gradient of a gamma reads it.
  if (!residual_.gamma.defined()) cut_.without_value_again();
}

at::Tensor MlpBranch::forward(const at::Tensor& of, const at::Tensor& added,
                              const ForwardContext& context) const {
  ops::LayerNormOutput normed = ops::normed(of, norm_, added);
  const at::Tensor x = normed.x;
  const bool plain = residual_.plain(context) && !dropout2_.active(context);
  const at::Tensor residual = plain ? x : at::Tensor();
  at::Tensor sum;
  if (cut_.is_cut()) {
    const auto partial = [&](ops::LayerNormOutput rows, const parallel::GroupSamples& samples, ops::Use use) {
      return hidden_.count == 0
                 ? nothing_of(std::move(rows), x.size(1), {fc1_.weight, fc1_.bias, fc2_.weight})
                 : layers(std::move(rows), fc2_.without_bias(use), {}, context, &samples.numbers);
    };
    sum = cut_(std::move(normed), {fc2_.bias, residual}, context, partial);
  } else {
    sum = layers(std::move(normed), fc2_, residual, context, nullptr);
  }
  return plain ? sum : residual_(x, dropout2_(sum, context), context);
}

at::Tensor MlpBranch::layers(ops::LayerNormOutput normed, const Linear& fc2, const at::Tensor& residual,
                             const ForwardContext& context,
                             const std::vector<uint64_t>* group_samples) const {
  if (!context.fp8 && !dropout1_.active(context)) {
    return ops::mlp(std::move(normed), fc1_.weight, fc1_.bias, fc2.weight, fc2.bias, residual,
                    context.keeps_activations, fc2.use);
  }
  if (!dropout1_.active(context)) {  // in fp8
    const ops::GeluOutput hidden = ops::gelu_output(fc1_.in_block(normed, context));
    normed.rows.reset();
    const at::Tensor branch = context.keeps_activations
                                  ? ops::fp8_linear(hidden.rows, fc2.weight, fc2.bias, fc2.use)
                                  : ops::fp8_linear(hidden, fc2.weight, fc2.bias, fc2.use);
    return residual.defined() ? residual + branch : branch;
  }
  at::Tensor hidden = fc1_.then_gelu(normed, context);
  normed.rows.reset();
  hidden = group_samples == nullptr ? dropout1_(hidden, context)
                                    : dropout1_.of_columns(hidden, hidden_, *group_samples, context);
  return residual.defined() ? fc2.then_add(hidden, residual, context) : fc2.in_block(hidden, context);
}

}  // namespace tessera::models
