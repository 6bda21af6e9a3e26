// SPDX-License-Identifier: Apache-2.0
// What a ViT computes and what it keeps for backward. docs/memory.md derives every term; the names here are
// those of that page.
#include <algorithm>

#include "tessera/arch/vit.h"

namespace tessera::arch {
namespace {

UnitActivations unit(double input, double all) { return {input, all, all - input}; }

UnitActivations stem_activations(const VitConfig& config, double c) {
  const auto tokens = static_cast<double>(config.tokens());
  const auto width = static_cast<double>(config.width);
  const double pixels = static_cast<double>(config.channels * config.image_size) * config.image_size;
  const double copy = c < kFloatBytes ? c * pixels : 0;  // of the image, in the compute dtype
  const double masks = config.dropout > 0 ? c * tokens * width : 0;
  return unit(copy, copy + masks);
}

// The block has queries of few tokens, which need no keys (Note [No keys, no values] in
// ops/few_query_attention.h).
bool makes_no_keys(const VitConfig& config, int64_t read_tokens) {
  return read_tokens < config.tokens() && !config.qk_norm;
}

// The first `read` of its tokens go on behind the attention.
UnitActivations block_activations(const VitConfig& config, double c, int64_t read_tokens,
                                  bool keeps_activations) {
  const auto tokens = static_cast<double>(config.tokens()), read = static_cast<double>(read_tokens);
  const auto d = static_cast<double>(config.width), m = static_cast<double>(config.mlp_width);
  const auto heads = static_cast<double>(config.heads);
  double of_all = 3 * d, of_read = 3 * d + m;
  // Mean and 1/std of two norms; of the softmax its logarithm, or with our kernels maximum and sum.
  double all_statistics = 2, read_statistics = 2 + (c < kFloatBytes ? 2 : 1) * heads;
  if (makes_no_keys(config, read_tokens)) {
    of_all -= 2 * d;
    of_read += 2 * heads * d;              // for each head what a query takes to the tokens and brings back,
    read_statistics = 2 + heads * tokens;  // and the whole softmax
  } else if (read < tokens) {
    of_read += d;  // what the queries are made of, copied
  }
  if (config.qk_norm) {
    of_all += d;
    of_read += d;
    all_statistics += 2 * heads;
    read_statistics += 2 * heads;
  }
  if (config.layer_scale > 0) of_read += 2 * d;
  if (config.dropout > 0) of_read += 2 * d + 2 * m;  // masks, and GELU's output with one
  if (keeps_activations) {
    if (!makes_no_keys(config, read_tokens)) of_all += d;  // norm1's, which qkv read
    of_read += d;                                          // norm2's, which fc1 read
    if (config.dropout == 0) of_read += m;                 // GELU's, which fc2 read
  }
  return unit(c * tokens * d, tokens * (c * of_all + kFloatBytes * all_statistics) +
                                  read * (c * of_read + kFloatBytes * read_statistics));
}

double classifiers(const VitConfig& config) { return config.distillation_token ? 2 : 1; }

// Logits and their logarithms of softmax.
double logit_bytes(const VitConfig& config) {
  return classifiers(config) * 2 * kFloatBytes * static_cast<double>(config.classes);
}

UnitActivations head_activations(const VitConfig& config, double c) {
  const auto tokens = static_cast<double>(config.tokens_read()),
             patches = static_cast<double>(config.patches());
  const auto d = static_cast<double>(config.width), m = static_cast<double>(config.mlp_width);
  const double input = c * tokens * d;
  // (Pooled, and the last layer's input; a mean needs no input for backward.)
  double all = logit_bytes(config) + classifiers(config) * c * 2 * d;
  if (!config.norm_after_pool()) all += 2 * input + 2 * kFloatBytes * tokens;
  if (config.pool == Pool::kAttention) all += c * (2 * patches * d + 4 * d + 2 * m);
  return unit(input, all);
}

}  // namespace

Activations activations(const VitConfig& config, double c, bool keeps_activations) {
  Activations result;
  result.units.push_back(stem_activations(config, c));
  for (int64_t i = 1; i <= config.depth; ++i) {
    result.units.push_back(block_activations(
        config, c, i < config.depth ? config.tokens() : config.tokens_read(), keeps_activations));
  }
  result.units.push_back(head_activations(config, c));
  const auto d = static_cast<double>(config.width), m = static_cast<double>(config.mlp_width);
  result.working = std::max(c * static_cast<double>(config.tokens()) * (d + std::max(2 * m, 4 * d)),
                            logit_bytes(config));  // their gradients, where there are so many classes
  return result;
}

double forward_flops(const VitConfig& c) {
  const auto n = static_cast<double>(c.tokens());
  const auto patches = static_cast<double>(c.patches());
  const auto d = static_cast<double>(c.width);
  const auto m = static_cast<double>(c.mlp_width);
  const double block = 4 * n * d * d + 2 * n * d * m + 2 * n * n * d;
  const double stem =
      patches * static_cast<double>(c.channels) * static_cast<double>(c.patch_size * c.patch_size) * d;
  double head = classifiers(c) * d * static_cast<double>(c.classes);
  if (c.head == Head::kTanh) head += d * d;
  if (c.pool == Pool::kAttention) {
    // One latent attends to the patches: q and proj of the latent, kv of the patches, scores and sum, MLP.
    head += 2 * d * d + 2 * patches * d * d + 2 * patches * d + 2 * d * m;
  }
  return 2 * (static_cast<double>(c.depth) * block + stem + head);
}

double unread_flops(const VitConfig& c) {
  const auto n = static_cast<double>(c.tokens()), d = static_cast<double>(c.width);
  const auto read = static_cast<double>(c.tokens_read()), unread = n - read;
  const double for_queries = 2 * d * d + 2 * d * static_cast<double>(c.mlp_width) + 2 * n * d;
  double macs = unread * for_queries;
  if (makes_no_keys(c, c.tokens_read())) {
    // Neither the others' keys and values nor attention to them; each head's queries meet whole tokens.
    macs += unread * 2 * d * d + read * 2 * n * d - read * static_cast<double>(c.heads) * 2 * n * d;
  }
  return 2 * macs;
}

}  // namespace tessera::arch
