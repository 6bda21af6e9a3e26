// SPDX-License-Identifier: Apache-2.0
// The parts of a Vision Transformer. Each holds handles of its parameters, not copies: whatever memory a
// parameter has when forward runs is what it reads.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>

#include "tessera/arch/vit.h"
#include "tessera/models/cut_branch.h"
#include "tessera/models/parameter_tree.h"
#include "tessera/models/segment.h"
#include "tessera/ops/layer_norm.h"
#include "tessera/ops/linear.h"
#include "tessera/ops/random_mask.h"

namespace tessera::models {

struct LayerNorm : ops::Norm {
  LayerNorm(const ParameterScope& scope, double norm_epsilon)
      : ops::Norm{scope.get("weight"), scope.get("bias"), norm_epsilon} {}
  at::Tensor operator()(const at::Tensor& x) const { return ops::layer_norm(x, *this); }
};

struct Linear {
  explicit Linear(const ParameterScope& scope) : Linear(scope.get("weight"), scope.get("bias")) {}
  Linear(at::Tensor weight_, at::Tensor bias_) : weight(std::move(weight_)), bias(std::move(bias_)) {}
  at::Tensor operator()(const at::Tensor& x) const;
  // Those of blocks compute as the context says. After a norm, what the norm makes is kept for backward only
  // if the context says so.
  at::Tensor in_block(const at::Tensor& x, const ForwardContext& context) const;
  at::Tensor then_gelu(const at::Tensor& x, const ForwardContext& context) const;
  at::Tensor in_block(const ops::LayerNormOutput& x, const ForwardContext& context) const;
  at::Tensor then_gelu(const ops::LayerNormOutput& x, const ForwardContext& context) const;
  at::Tensor then_add(const at::Tensor& x, const at::Tensor& residual, const ForwardContext& context) const;
  // The layers of its first `outputs` and of its other outputs.
  std::pair<Linear, Linear> split(int64_t outputs) const;
  // With a bias of zeros, which is not trained: for partial sums, to which the bias is added once. `then`:
  // whether they are read.
  Linear without_bias(ops::Use then) const;

  at::Tensor weight;               // [out, in]
  at::Tensor bias;                 // [out]
  ops::Use use = ops::Use::kRead;  // of in_block() of a tensor
};

/// Random numbers of one place in the model: a rate and the name that its masks depend on.
struct Dropout {
  Dropout(double rate_, std::string name_) : rate(rate_), name(std::move(name_)) {}
  bool active(const ForwardContext& context) const { return context.training && rate > 0.0; }
  at::Tensor operator()(const at::Tensor& x, const ForwardContext& context) const;
  /// Of a rank that has these columns of x, [batch, tokens, columns.count], for these samples.
  at::Tensor of_columns(const at::Tensor& x, const ops::MaskColumns& columns,
                        const std::vector<uint64_t>& samples, const ForwardContext& context) const;

  double rate;
  std::string name;
};

/// x + drop_path(gamma * branch), gamma and drop-path where there are any.
struct Residual {
  Residual(at::Tensor gamma_, double rate, std::string name)
      : gamma(std::move(gamma_)), drop_path(rate, std::move(name)) {}
  bool plain(const ForwardContext& context) const { return !gamma.defined() && !drop_path.active(context); }
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& branch, const ForwardContext& context) const;

  at::Tensor gamma;  // [width] or undefined: no LayerScale
  Dropout drop_path;
};

/// Logits in float32, as losses need them; float64 stays.
at::Tensor in_float32(const at::Tensor& logits);

/// [batch, channels, size, size] -> [batch, patches, channels * patch^2] in `dtype`: a convolution whose
/// stride is its kernel is one matrix product over these. Requires: patch divides size.
at::Tensor unfold_patches(const at::Tensor& images, int64_t patch, at::ScalarType dtype);

/// norm1 and attention: x -> x + proj(attention(qkv(norm1(x)))), [batch, tokens, width]. In the last block
/// only for the tokens that the head reads, [batch, tokens_read, width], unless the context asks for all.
//
// Note [Tokens that are read]: a head that reads the class token alone reads nothing else of the last block,
// whose other tokens matter for their keys and values only, and few queries need not even those
// (few_query_attention.h). Unused tokens have no gradient either: so what the last block makes is the
// class token's, the same numbers for a twelfth of a ViT-B's products less. Keys that are normed or rounded
// to fp8 are made, as no weight can be taken past a norm or a rounding: then it is a fourteenth.
class AttentionBranch {
 public:
  /// `group`: over whom its layers are cut, by heads; null: not.
  AttentionBranch(const ParameterMap& map, const arch::VitConfig& config, int64_t block, double drop_path,
                  const parallel::TensorGroup* group);
  /// The result is the sum of the two; the second is undefined where it is added already.
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x, const ForwardContext& context) const;

 private:
  // attention(qkv(..)): for every token, and for the first that are read.
  at::Tensor of_all(ops::LayerNormOutput normed, const ForwardContext& context) const;
  at::Tensor of_first(ops::LayerNormOutput normed, const ForwardContext& context) const;
  at::Tensor without_heads(ops::LayerNormOutput rows, int64_t tokens) const;
  // [batch, tokens, parts * width] as `parts` tensors [batch, tokens, heads, head width].
  std::vector<at::Tensor> heads_of(const at::Tensor& packed, int64_t parts) const;

  CutBranch cut_;
  int64_t heads_, read_;  // heads of this rank
  LayerNorm norm_;
  Linear qkv_, proj_;
  std::vector<LayerNorm> qk_norms_;  // none, or those of q and k
  Dropout proj_dropout_;
  Residual residual_;
};

/// norm2 and MLP: x -> x + fc2(gelu(fc1(norm2(x)))), of x = `of` + `added` (undefined: of `of`).
class MlpBranch {
 public:
  /// `group`: over whom its layers are cut, by hidden units; null: not.
  MlpBranch(const ParameterMap& map, const arch::VitConfig& config, int64_t block, double drop_path,
            const parallel::TensorGroup* group);
  at::Tensor forward(const at::Tensor& of, const at::Tensor& added, const ForwardContext& context) const;

 private:
  // fc2(gelu(fc1(..))) with `residual` where that is defined. `group_samples`: of the rows, where they are
  // not the context's.
  at::Tensor layers(ops::LayerNormOutput normed, const Linear& fc2, const at::Tensor& residual,
                    const ForwardContext& context, const std::vector<uint64_t>* group_samples) const;

  CutBranch cut_;
  ops::MaskColumns hidden_;  // those of this rank
  LayerNorm norm_;
  Linear fc1_, fc2_;
  Dropout dropout1_, dropout2_;
  Residual residual_;
};

}  // namespace tessera::models
