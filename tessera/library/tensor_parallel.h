// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism in a program's own network: a few ranks hold the columns and rows of a layer's weights
// together, and each computes its part for the samples of all of them.
//
//   library::TensorParallelGroup group(mesh, "tensor");    // the ranks of an axis of the mesh
//   library::ColumnLinear fc1(width, hidden, group);       // this rank's hidden units
//   library::RowLinear fc2(hidden, width, group);
//   ...
//   group.begin(x.size(0));                                // once a micro-batch; ranks may differ
//   auto rows = group.enter(x);                            // [samples of all ranks, ..., width]
//   auto y = fc2->forward(torch::gelu(fc1->forward(rows)), x);  // this rank's samples; x: the residual
//
// Norms, residuals, the loss and layers that are not cut work on this rank's samples alone. docs/library.md
// shows how to cut other layers.
//
// Everything belongs to one thread. All ranks of the group make the same calls in the same order, in backward
// as well: the loss of a rank without samples must depend on the output too (the sum of no losses does).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/base/region.h"
#include "tessera/mesh/mesh.h"
#include "tessera/parallel/tensor_group.h"

namespace tessera::library {

/// The ranks that hold layers together, and how many samples each of them has in the current micro-batch.
class TensorParallelGroup {
 public:
  /// `ranks` must outlive the group. A group of one rank computes whole layers and communicates nothing.
  explicit TensorParallelGroup(mesh::Group& ranks);
  /// The ranks along an axis. The mesh must outlive the group. Errors: UserError if the mesh has no such
  /// axis.
  TensorParallelGroup(mesh::Mesh& mesh, const std::string& axis);
  TensorParallelGroup(const TensorParallelGroup&) = delete;
  TensorParallelGroup& operator=(const TensorParallelGroup&) = delete;

  int64_t size() const { return ranks_.size(); }
  int64_t rank() const { return ranks_.rank(); }
  mesh::Group& ranks() const { return ranks_; }

  /// Which of `items` heads, hidden units, ... `rank` holds: [items rank / size, items (rank + 1) / size).
  /// Ranks differ by one item at most; with fewer items than ranks some hold none. Errors: UserError if the
  /// group has no such rank.
  DimRange items_of(int64_t items, int64_t rank) const;

  /// This rank has so many samples, 0 or more, in the forward passes that follow; learns the counts of the
  /// others. Collective: one small message. Earlier forward passes keep their counts in backward. Recomputed
  /// layers read the current counts, so their backward must come before the next call.
  void begin(int64_t samples);
  /// The same without a message where the counts of all ranks are known, by rank of the group.
  void set_counts(std::vector<int64_t> counts);
  const std::vector<int64_t>& counts() const { return samples_.counts; }

  /// Samples of all ranks, rank 0's first, [sum of counts, ...], of this rank's `rows` [counts[rank], ...].
  /// float32, float64 or bfloat16. Differentiable: backward sums the gradient over the ranks. `layer` is a
  /// name for errors. Collective. Errors: UserError on rows that do not fit the counts.
  at::Tensor enter(const at::Tensor& rows, const std::string& layer = "layer") const;

  /// This rank's samples of the sum over ranks of `partial` [sum of counts, ..., width], plus `bias` [width]
  /// and `residual` (shaped as the result), where defined: [counts[rank], ..., width] in the dtype of
  /// `partial`. Sums are in float32 (float64 for float64) and rounded once. Differentiable; `partial` must be
  /// part of autograd's graph on every rank or on none. Collective. Errors: UserError on shapes that do not
  /// fit.
  at::Tensor leave(const at::Tensor& partial, const at::Tensor& bias = {}, const at::Tensor& residual = {},
                   const std::string& layer = "layer") const;

 private:
  mesh::Group& ranks_;
  parallel::TensorGroup group_;
  parallel::GroupSamples samples_;
};

/// Base of modules with cut parameters. Such a module derives from it and from torch::nn::Module.
class CutModule {
 public:
  virtual ~CutModule() = default;
  /// Parameters of this module, without its children, of which this rank holds a part.
  virtual std::vector<at::Tensor> cut_parameters() const = 0;
};

/// Tells the parameters that are cut (CutModule::cut_parameters of `module` and its descendants) from whole
/// ones; what FullyShardOptions::ignore takes. The name is not looked at.
std::function<bool(const std::string& name, const at::Tensor& parameter)> is_cut(torch::nn::Module& module);

/// Completes .grad of `module`'s trainable parameters: those of cut parameters are summed over
/// `data_parallel`, the ranks with the same part of the layers; those of whole parameters over `all` ranks.
/// With losses that are sums over this rank's samples, divided by the samples of all ranks, the result is the
/// gradient of the mean. An undefined .grad counts as zeros. Collective: one message a parameter.
void sum_gradients(torch::nn::Module& module, mesh::Group& all, mesh::Group& data_parallel);

struct CutLinearOptions {
  CutLinearOptions(int64_t in_features, int64_t out_features)
      : in_features_(in_features), out_features_(out_features) {}
  TORCH_ARG(int64_t, in_features);
  TORCH_ARG(int64_t, out_features);
  TORCH_ARG(bool, bias) = true;
  /// The cut features are so many equal items, such as heads, which are held whole. 0: a feature is an item.
  TORCH_ARG(int64_t, items) = 0;
};

/// Parameters of a torch::nn::Linear. `bias` is undefined where there is none.
struct WholeLinear {
  at::Tensor weight;  // [out_features, in_features]
  at::Tensor bias;    // [out_features]
};

/// What ColumnLinear and RowLinear share. Initial values are those that torch::nn::Linear draws from the
/// default generator, cut: with the same seed on every rank they do not depend on the number of ranks.
class CutLinearImpl : public torch::nn::Module, public CutModule {
 public:
  /// Copies this rank's part. Errors: UserError on other shapes than those of the whole layer.
  void set_whole(const WholeLinear& whole);
  /// The whole layer, on every rank, for checkpoints. Collective.
  WholeLinear whole() const;
  /// Cut features that this rank holds.
  DimRange features() const { return features_of(group_.rank()); }

  at::Tensor weight;
  at::Tensor bias;  // undefined: none

 protected:
  /// `cut_dim`: of the weight.
  CutLinearImpl(const char* name, const CutLinearOptions& options, TensorParallelGroup& group,
                int64_t cut_dim);
  void check_input(const at::Tensor& rows) const;

  const TensorParallelGroup& group_;

 private:
  DimRange features_of(int64_t rank) const;
  at::Tensor part_of(const at::Tensor& whole, int64_t dim) const;
  at::Tensor gather(const at::Tensor& part, const char* what) const;

  CutLinearOptions options_;
  int64_t cut_dim_;
};

/// This rank's output features of a linear layer. `group` must outlive it.
class ColumnLinearImpl : public CutLinearImpl {
 public:
  ColumnLinearImpl(int64_t in_features, int64_t out_features, TensorParallelGroup& group)
      : ColumnLinearImpl(CutLinearOptions(in_features, out_features), group) {}
  ColumnLinearImpl(const CutLinearOptions& options, TensorParallelGroup& group);

  /// [..., features().size()], without communication, of what TensorParallelGroup::enter gave
  /// [..., in_features]. Errors: UserError on another width.
  at::Tensor forward(const at::Tensor& rows);
  /// Weight and bias.
  std::vector<at::Tensor> cut_parameters() const override;
};
TORCH_MODULE(ColumnLinear);

/// A linear layer of which this rank holds input features, and the whole bias. `group` must outlive it.
class RowLinearImpl : public CutLinearImpl {
 public:
  RowLinearImpl(int64_t in_features, int64_t out_features, TensorParallelGroup& group)
      : RowLinearImpl(CutLinearOptions(in_features, out_features), group) {}
  RowLinearImpl(const CutLinearOptions& options, TensorParallelGroup& group);

  /// [counts[rank], ..., out_features]: the output for this rank's samples, of this rank's features of all
  /// samples [sum of counts, ..., features().size()]; the bias and `residual` (if defined) are added after
  /// the sum. Collective. Errors: UserError on shapes that do not fit.
  at::Tensor forward(const at::Tensor& rows, const at::Tensor& residual = {});
  /// The weight; the bias is whole.
  std::vector<at::Tensor> cut_parameters() const override;
};
TORCH_MODULE(RowLinear);

}  // namespace tessera::library
