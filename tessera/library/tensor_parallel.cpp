// SPDX-License-Identifier: Apache-2.0
#include "tessera/library/tensor_parallel.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/linear.h>

#include <numeric>
#include <optional>
#include <unordered_set>
#include <utility>

#include "tessera/arch/cut.h"
#include "tessera/base/error.h"

namespace tessera::library {
namespace {

constexpr const char* kGroup = "library.TensorParallelGroup";

std::string text_of(at::IntArrayRef shape) {
  std::string text;
  for (const int64_t size : shape) text += concat(text.empty() ? "" : ", ", size);
  return "[" + text + "]";
}

/// The ranks of an axis that the mesh has.
mesh::Group& group_of(mesh::Mesh& mesh, const std::string& axis) {
  std::string axes;
  for (const mesh::Axis& known : mesh.axes()) {
    if (known.name == axis) return mesh.group(axis);
    axes += concat(axes.empty() ? "" : ", ", known.name);
  }
  user_error({.where = kGroup,
              .problem = concat("the mesh has no axis '", axis, "'"),
              .expected = concat("one of its axes: ", axes),
              .hint = "name it in ConnectOptions::axes"});
}

void check_counts(const std::vector<int64_t>& counts, int64_t ranks) {
  if (static_cast<int64_t>(counts.size()) != ranks) {
    user_error({.where = kGroup,
                .problem = concat(counts.size(), " counts of samples"),
                .expected = concat("one for each of ", ranks, " ranks")});
  }
  for (const int64_t count : counts) {
    if (count >= 0) continue;
    user_error(
        {.where = kGroup, .problem = concat("a rank has ", count, " samples"), .expected = "0 or more"});
  }
}

/// `rows` [expected, ...].
void check_rows(const at::Tensor& rows, const std::vector<int64_t>& counts, int64_t expected,
                const std::string& layer) {
  if (counts.empty()) {
    user_error({.where = kGroup,
                .problem = layer + " runs, but the counts of samples are not known",
                .expected = "a call of begin() or set_counts() before the forward pass"});
  }
  if (rows.dim() >= 2 && rows.size(0) == expected) return;
  user_error({.where = kGroup,
              .problem = concat(layer, " got a tensor of shape ", text_of(rows.sizes())),
              .expected = concat("[", expected, ", ...]: the ranks have ", text_of(counts), " samples"),
              .hint = "call begin() with the samples of every micro-batch"});
}

void check_shape(const at::Tensor& tensor, at::IntArrayRef expected, const std::string& what) {
  if (tensor.sizes() == expected) return;
  user_error({.where = "library.tensor_parallel",
              .problem = concat(what, " has shape ", text_of(tensor.sizes())),
              .expected = text_of(expected)});
}

}  // namespace

TensorParallelGroup::TensorParallelGroup(mesh::Group& ranks)
    : ranks_(ranks), group_(ranks, /*index=*/0, /*keeps_gathered=*/true, /*pieces=*/1) {}

TensorParallelGroup::TensorParallelGroup(mesh::Mesh& mesh, const std::string& axis)
    : TensorParallelGroup(group_of(mesh, axis)) {}

DimRange TensorParallelGroup::items_of(int64_t items, int64_t rank) const {
  if (rank < 0 || rank >= size()) {
    user_error({.where = kGroup,
                .problem = concat("there is no rank ", rank),
                .expected = concat("a rank of the group, 0 to ", size() - 1)});
  }
  return arch::items_of(items, size(), rank);
}

void TensorParallelGroup::begin(int64_t samples) {
  const at::Tensor mine = at::full({1}, samples, at::kLong), all = at::empty({size()}, at::kLong);
  ranks_.all_gather(all, mine, "samples of the micro-batch").wait();
  const auto* counts = all.const_data_ptr<int64_t>();
  set_counts({counts, counts + size()});
}

void TensorParallelGroup::set_counts(std::vector<int64_t> counts) {
  check_counts(counts, size());
  samples_.counts = std::move(counts);
}

at::Tensor TensorParallelGroup::enter(const at::Tensor& rows, const std::string& layer) const {
  check_rows(rows, counts(), counts().empty() ? 0 : counts()[static_cast<size_t>(rank())], layer);
  return group_.enter(rows, samples_, layer);
}

at::Tensor TensorParallelGroup::leave(const at::Tensor& partial, const at::Tensor& bias,
                                      const at::Tensor& residual, const std::string& layer) const {
  check_rows(partial, counts(), std::accumulate(counts().begin(), counts().end(), int64_t{0}), layer);
  std::vector<int64_t> shape = partial.sizes().vec();
  shape.front() = counts()[static_cast<size_t>(rank())];
  if (bias.defined()) check_shape(bias, {shape.back()}, layer + ": the bias");
  if (residual.defined()) check_shape(residual, shape, layer + ": the residual");
  return group_.leave(partial, {bias, residual}, samples_, layer);
}

std::function<bool(const std::string& name, const at::Tensor& parameter)> is_cut(torch::nn::Module& module) {
  std::unordered_set<const void*> cut;
  module.apply([&](torch::nn::Module& child) {
    const auto* layer = dynamic_cast<const CutModule*>(&child);
    if (layer == nullptr) return;
    for (const at::Tensor& parameter : layer->cut_parameters()) cut.insert(parameter.unsafeGetTensorImpl());
  });
  return [cut = std::move(cut)](const std::string&, const at::Tensor& parameter) {
    return cut.contains(parameter.unsafeGetTensorImpl());
  };
}

void sum_gradients(torch::nn::Module& module, mesh::Group& all, mesh::Group& data_parallel) {
  const at::NoGradGuard no_grad;
  const auto cut = is_cut(module);
  std::unordered_set<const void*> summed;  // a tied parameter has several names
  for (auto& entry : module.named_parameters()) {
    at::Tensor parameter = entry.value();
    if (!parameter.requires_grad() || !summed.insert(parameter.unsafeGetTensorImpl()).second) continue;
    at::Tensor sum = (parameter.grad().defined() ? parameter.grad() : at::zeros_like(parameter)).contiguous();
    (cut(entry.key(), parameter) ? data_parallel : all).sum(sum, "gradient of " + entry.key());
    parameter.mutable_grad() = sum;
  }
}

CutLinearImpl::CutLinearImpl(const char* name, const CutLinearOptions& options, TensorParallelGroup& group,
                             int64_t cut_dim)
    : torch::nn::Module(name), group_(group), options_(options), cut_dim_(cut_dim) {
  const int64_t features = cut_dim == 0 ? options.out_features() : options.in_features();
  if (options.in_features() < 1 || options.out_features() < 1) {
    user_error(
        {.where = concat("library.", name),
         .problem = concat("a layer of ", options.in_features(), " -> ", options.out_features(), " features"),
         .expected = "at least 1 feature on both sides"});
  }
  if (options.items() < 0 || (options.items() > 0 && features % options.items() != 0)) {
    user_error({.where = concat("library.", name),
                .problem = concat(features, " features cannot be ", options.items(), " equal items"),
                .expected = "a divisor of the features, or 0"});
  }
  if (options.items() == 0) options_.items(features);
  torch::nn::Linear whole(
      torch::nn::LinearOptions(options.in_features(), options.out_features()).bias(options.bias()));
  weight = register_parameter("weight", part_of(whole->weight, cut_dim));
  if (!options.bias()) return;
  bias = register_parameter("bias", cut_dim == 0 ? part_of(whole->bias, 0) : whole->bias.detach().clone());
}

DimRange CutLinearImpl::features_of(int64_t rank) const {
  const int64_t size = (cut_dim_ == 0 ? options_.out_features() : options_.in_features()) / options_.items();
  const DimRange items = group_.items_of(options_.items(), rank);
  return {items.begin * size, items.end * size};
}

at::Tensor CutLinearImpl::part_of(const at::Tensor& whole, int64_t dim) const {
  const DimRange mine = features();
  return whole.detach().narrow(dim, mine.begin, mine.size()).clone(at::MemoryFormat::Contiguous);
}

void CutLinearImpl::check_input(const at::Tensor& rows) const {
  if (rows.dim() >= 2 && rows.size(-1) == weight.size(1)) return;
  user_error({.where = "library." + name(),
              .problem = concat("the input has shape ", text_of(rows.sizes())),
              .expected = concat("[samples, ..., ", weight.size(1), "]")});
}

void CutLinearImpl::set_whole(const WholeLinear& whole) {
  const at::NoGradGuard no_grad;
  check_shape(whole.weight, {options_.out_features(), options_.in_features()}, "the whole weight");
  if (whole.bias.defined() != bias.defined()) {
    user_error({.where = "library." + name(),
                .problem = concat("the whole layer has ", whole.bias.defined() ? "a" : "no", " bias"),
                .expected = bias.defined() ? "a layer with a bias" : "a layer without a bias"});
  }
  if (bias.defined()) check_shape(whole.bias, {options_.out_features()}, "the whole bias");
  weight.copy_(part_of(whole.weight, cut_dim_));
  if (bias.defined()) bias.copy_(cut_dim_ == 0 ? part_of(whole.bias, 0) : whole.bias);
}

/// All ranks' parts of a tensor that is cut in its first dim.
at::Tensor CutLinearImpl::gather(const at::Tensor& part, const char* what) const {
  std::vector<int64_t> counts;
  for (int64_t rank = 0; rank < group_.size(); ++rank) counts.push_back(features_of(rank).size());
  return group_.ranks().gather_rows(part, counts, what).wait();
}

WholeLinear CutLinearImpl::whole() const {
  const at::NoGradGuard no_grad;
  const at::Tensor all = gather(weight.detach().transpose(0, cut_dim_).contiguous(), "the whole weight");
  WholeLinear whole{all.transpose(0, cut_dim_).contiguous(), {}};
  if (bias.defined())
    whole.bias = cut_dim_ == 0 ? gather(bias.detach(), "the whole bias") : bias.detach().clone();
  return whole;
}

ColumnLinearImpl::ColumnLinearImpl(const CutLinearOptions& options, TensorParallelGroup& group)
    : CutLinearImpl("ColumnLinear", options, group, /*cut_dim=*/0) {}

at::Tensor ColumnLinearImpl::forward(const at::Tensor& rows) {
  check_input(rows);
  return at::linear(rows, weight, bias.defined() ? std::optional(bias) : std::nullopt);
}

std::vector<at::Tensor> ColumnLinearImpl::cut_parameters() const {
  return bias.defined() ? std::vector<at::Tensor>{weight, bias} : std::vector<at::Tensor>{weight};
}

RowLinearImpl::RowLinearImpl(const CutLinearOptions& options, TensorParallelGroup& group)
    : CutLinearImpl("RowLinear", options, group, /*cut_dim=*/1) {}

at::Tensor RowLinearImpl::forward(const at::Tensor& rows, const at::Tensor& residual) {
  check_input(rows);
  return group_.leave(at::linear(rows, weight), bias, residual, name());
}

std::vector<at::Tensor> RowLinearImpl::cut_parameters() const { return {weight}; }

}  // namespace tessera::library
