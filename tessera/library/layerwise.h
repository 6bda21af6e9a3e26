// SPDX-License-Identifier: Apache-2.0
// LAMB and LARS: optimizers for large batches, whose step for a tensor is as long as its own norm says. Norms
// are those of whole tensors, whatever a rank holds of them.
#pragma once

#include <torch/arg.h>
#include <torch/optim/optimizer.h>

#include <tuple>
#include <vector>

#include "tessera/shard/fully_shard.h"

namespace tessera::library {

struct LambOptions : public torch::optim::OptimizerCloneableOptions<LambOptions> {
  using Betas = std::tuple<double, double>;
  explicit LambOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(Betas, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(double, weight_decay) = 0.01;
  TORCH_ARG(bool, adapt) = true;  // false: a ratio of 1, that is AdamW; usual for biases and norms

 public:
  double get_lr() const override { return lr_; }
  void set_lr(const double lr) override { lr_ = lr; }
};

struct LambParamState : public torch::optim::OptimizerCloneableParamState<LambParamState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(torch::Tensor, exp_avg);
  TORCH_ARG(torch::Tensor, exp_avg_sq);
};

/// Algorithm 2 of You et al., arXiv 1904.00962, with phi(z) = z. For a tensor w of gradient g:
///   m = b1 m + (1 - b1) g         v = b2 v + (1 - b2) g^2
///   u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay w
///   w = w - lr (|w| / |u|) u      the ratio is 1 where a norm is 0 or `adapt` is off
/// timm's Lamb differs: it clips the whole gradient to 1 itself (here: clip_grad_norm), and groups without
/// weight decay are not adapted unless asked for (here: `adapt`).
class Lamb : public torch::optim::Optimizer {
 public:
  /// All of sharded.parameters() alike. `sharded` must outlive it.
  explicit Lamb(shard::ShardedModule& sharded, const LambOptions& options = LambOptions());
  /// Groups of them, each parameter at most once; options of a group: LambOptions. Errors: UserError on
  /// tensors that are not among sharded.parameters().
  Lamb(shard::ShardedModule& sharded, const std::vector<torch::optim::OptimizerParamGroup>& groups,
       const LambOptions& defaults = LambOptions());

  /// Collective: one all-reduce of two numbers a tensor.
  torch::Tensor step(LossClosure closure = nullptr) override;

 private:
  shard::ShardedModule& sharded_;
};

struct LarsOptions : public torch::optim::OptimizerCloneableOptions<LarsOptions> {
  explicit LarsOptions(double lr) : lr_(lr) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(double, momentum) = 0.9;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(double, trust) = 1e-3;  // the paper's eta
  TORCH_ARG(bool, adapt) = true;    // false: a ratio of 1, that is SGD; usual for biases and norms

 public:
  double get_lr() const override { return lr_; }
  void set_lr(const double lr) override { lr_ = lr; }
};

struct LarsParamState : public torch::optim::OptimizerCloneableParamState<LarsParamState> {
  TORCH_ARG(torch::Tensor, momentum_buffer);
};

/// Algorithm 1 of You et al., arXiv 1708.03888. For a tensor w of gradient g:
///   r = trust |w| / (|g| + weight_decay |w|)      1 where a norm is 0 or `adapt` is off
///   v = momentum v + lr r (g + weight_decay w)
///   w = w - v
/// timm's Lars differs: the learning rate is applied after the momentum (the same while it does not change),
/// and groups without weight decay are not adapted unless asked for.
class Lars : public torch::optim::Optimizer {
 public:
  /// As Lamb's.
  Lars(shard::ShardedModule& sharded, const LarsOptions& options);
  Lars(shard::ShardedModule& sharded, const std::vector<torch::optim::OptimizerParamGroup>& groups,
       const LarsOptions& defaults);

  /// Collective, as Lamb's.
  torch::Tensor step(LossClosure closure = nullptr) override;

 private:
  shard::ShardedModule& sharded_;
};

}  // namespace tessera::library
