// SPDX-License-Identifier: Apache-2.0
// What a ViT computes and what it keeps for backward. docs/memory.md derives every term; the names here are
// those of that page.
#include <algorithm>

#include "tessera/arch/cut.h"
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

/// What a block keeps of one token: values of the compute dtype and fp32 values. `own`: of the rank's own
/// samples. `group`: of those of its tensor group, whose heads and hidden units the rank computes.
struct KeptOfToken {
  double own = 0, group = 0, own_floats = 0, group_floats = 0;
  double bytes(double c, double degree) const {
    return c * (own + degree * group) + kFloatBytes * (own_floats + degree * group_floats);
  }
};

// The first `read` of its tokens go on behind the attention.
UnitActivations block_activations(const VitConfig& config, double c, int64_t read_tokens,
                                  bool keeps_activations, const TensorShare& share) {
  const auto tokens = static_cast<double>(config.tokens()), read = static_cast<double>(read_tokens);
  const auto d = static_cast<double>(config.width);
  const auto heads = static_cast<double>(items_of(config.heads, share.degree, share.index).size());
  const auto m = static_cast<double>(hidden_of(config.mlp_width, share.degree, share.index));
  const double of_heads = d * heads / static_cast<double>(config.heads);
  const bool keeps_gathered = share.degree > 1 && share.keeps_gathered;
  const bool no_keys = makes_no_keys(config, read_tokens);
  // The inputs of both norms with mean and 1/std; keys and values; queries, the attention's output and what
  // GELU reads; of the softmax its logarithm, or with our kernels maximum and sum.
  KeptOfToken of_all{.own = d, .group = 2 * of_heads, .own_floats = 2};
  KeptOfToken of_read{.own = d,
                      .group = 2 * of_heads + m,
                      .own_floats = 2,
                      .group_floats = (c < kFloatBytes ? 2 : 1) * heads};
  if (no_keys) {
    of_all.group = 0;
    of_read.group += 2 * heads * d;         // for each head what a query takes to the tokens and brings back,
    of_read.group_floats = heads * tokens;  // and the whole softmax
  } else if (read < tokens) {
    of_read.group += d;  // what the queries are made of, copied
  }
  if (config.qk_norm) {
    for (KeptOfToken* kept : {&of_all, &of_read}) {
      kept->group += of_heads;
      kept->group_floats += 2 * heads;
    }
  }
  if (config.layer_scale > 0) of_read.own += 2 * d;
  if (config.dropout > 0) {  // masks, and GELU's output with one
    of_read.own += 2 * d;
    of_read.group += 2 * m;
  }
  if (keeps_gathered) {  // the outputs of both norms
    of_all.group += d;
    of_read.group += d;
  } else if (keeps_activations) {
    if (!no_keys) of_all.own += d;  // norm1's, which qkv read
    of_read.own += d;               // norm2's, which fc1 read
  }
  if (keeps_activations && config.dropout == 0) of_read.group += m;  // GELU's, which fc2 read
  const auto degree = static_cast<double>(share.degree);
  UnitActivations result =
      unit(c * tokens * d, tokens * of_all.bytes(c, degree) + read * of_read.bytes(c, degree));
  // The attention's, which norm2 reads; the MLP's for the gradient of its LayerScale.
  if (share.degree > 1) result.sums = (config.layer_scale > 0 ? 2 : 1) * c * read * d;
  return result;
}

/// Gradients of activations in a block's backward, where they take the most: that of the residual stream,
/// and GELU's output with its gradient, or those of queries, keys, values and the attention's output.
double block_working(const VitConfig& config, double c, const TensorShare& share) {
  const auto d = static_cast<double>(config.width), degree = static_cast<double>(share.degree);
  const auto heads = static_cast<double>(items_of(config.heads, share.degree, share.index).size());
  const auto m = static_cast<double>(hidden_of(config.mlp_width, share.degree, share.index));
  const double widest = std::max(2 * m, 4 * d * heads / static_cast<double>(config.heads));
  return c * static_cast<double>(config.tokens()) * (d + degree * widest + exchanged_width(share, d));
}

/// On a GPU, beyond all that the block keeps: when the gradient of GELU's output is made, and when that of
/// the input of qkv is summed over the tensor group. By then what the MLP kept is free.
double block_working_on_gpu(const VitConfig& config, double c, bool keeps_activations,
                            const TensorShare& share) {
  const auto d = static_cast<double>(config.width), degree = static_cast<double>(share.degree);
  const auto heads = static_cast<double>(items_of(config.heads, share.degree, share.index).size());
  const double of_heads = d * heads / static_cast<double>(config.heads);
  const auto m = static_cast<double>(hidden_of(config.mlp_width, share.degree, share.index));
  const double exchanged = share.degree > 1 ? d : 0;
  const bool keeps_gelu = keeps_activations || config.dropout > 0;
  const double made_again = keeps_gelu ? 0 : m;  // GELU's output
  const double mlp = d + degree * (exchanged + m + made_again);
  const double freed = degree * (keeps_gelu ? 2 * m : m);
  const double attention = d + degree * (4 * of_heads + 3 * exchanged) - freed;
  return c * static_cast<double>(config.tokens()) * std::max(mlp, attention);
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

Exchanges exchanges(const VitConfig& config, size_t index) {
  const auto depth = static_cast<size_t>(config.depth);
  if (index == 0 || index > depth) return {};
  // The attention gathers all tokens; its sum, and what the MLP gathers and sums, have those that go on.
  const int64_t tokens = config.tokens(), read = index < depth ? tokens : config.tokens_read();
  const auto width = static_cast<double>(config.width);
  const double of_all = static_cast<double>(tokens) * width, of_read = static_cast<double>(read) * width;
  return {.forward = of_all + 3 * of_read,
          .inputs = of_all + of_read,
          .again = of_all + (config.layer_scale > 0 ? 3 : 2) * of_read,
          .again_with_sums = of_all + of_read};
}

Activations activations(const VitConfig& config, double c, bool keeps_activations,
                        const std::vector<TensorShare>& shares) {
  Activations result;
  result.working = result.working_on_gpu = logit_bytes(config);  // their gradients, where there are so many
  result.units.push_back(stem_activations(config, c));
  for (int64_t i = 1; i <= config.depth; ++i) {
    const TensorShare share = shares.empty() ? TensorShare() : shares.at(static_cast<size_t>(i));
    const int64_t read = i < config.depth ? config.tokens() : config.tokens_read();
    result.units.push_back(block_activations(config, c, read, keeps_activations, share));
    result.working = std::max(result.working, block_working(config, c, share));
    result.working_on_gpu =
        std::max(result.working_on_gpu, block_working_on_gpu(config, c, keeps_activations, share));
  }
  result.units.push_back(head_activations(config, c));
  return result;
}

namespace {

/// Multiply-adds of each kind of unit, for all tokens.
struct UnitMacs {
  double stem = 0, block = 0, head = 0;
};

UnitMacs unit_macs(const VitConfig& c) {
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
  return {stem, block, head};
}

}  // namespace

double forward_flops(const VitConfig& c) {
  const auto [stem, block, head] = unit_macs(c);
  return 2 * (static_cast<double>(c.depth) * block + stem + head);
}

std::vector<double> unit_flops(const VitConfig& c) {
  const auto [stem, block, head] = unit_macs(c);
  std::vector<double> flops(static_cast<size_t>(c.depth) + 2, 2 * block);
  flops.front() = 2 * stem;
  flops.back() = 2 * head;
  flops[flops.size() - 2] -= unread_flops(c);
  return flops;
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
