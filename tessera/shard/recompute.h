// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing for LibTorch (Chen et al., arXiv 1604.06174): a segment of a network keeps only
// its inputs in forward; backward runs it again and differentiates that. Works with and without sharding.
//
// Inside one's own forward:
//
//   x = tessera::shard::recompute([&](const at::Tensor& h) { return block->forward(h); }, x);
//
// For the children of a torch::nn::Sequential the policy can do it (UnitOptions::recompute). A child that is
// called by its type, block->forward(x), cannot be wrapped from outside in C++: write the line above.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/any.h>

#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera::shard {

using Tensors = std::vector<at::Tensor>;

/// The general form: any number of tensors in and out. What `body` captures must live until backward. The
/// second run draws the same random numbers from LibTorch's CPU generator and leaves buffers (BatchNorm's
/// running statistics) as the first did. May be nested. Any thread.
Tensors recompute_list(const std::function<Tensors(const Tensors&)>& body, const Tensors& inputs);

namespace detail {
inline Tensors to_list(at::Tensor output) { return {std::move(output)}; }
template <typename... Outputs>
Tensors to_list(std::tuple<Outputs...> outputs) {
  return std::apply([](auto&... output) { return Tensors{output...}; }, outputs);
}
inline Tensors to_list(Tensors outputs) { return outputs; }

template <typename Result>
Result from_list(Tensors outputs) {
  if constexpr (std::is_same_v<Result, at::Tensor>) {
    return outputs.at(0);
  } else if constexpr (std::is_same_v<Result, Tensors>) {
    return outputs;
  } else {
    return [&]<size_t... I>(std::index_sequence<I...>) { return Result{outputs.at(I)...}; }
    (std::make_index_sequence<std::tuple_size_v<Result>>{});
  }
}
}  // namespace detail

/// body(inputs...) -> at::Tensor, std::tuple of them, or std::vector<at::Tensor>.
template <typename Body, typename... Inputs>
auto recompute(Body body, const Inputs&... inputs) {
  using Result = std::decay_t<std::invoke_result_t<Body, const Inputs&...>>;
  const auto run = [body = std::move(body)](const Tensors& list) mutable {
    return [&]<size_t... I>(std::index_sequence<I...>) { return detail::to_list(body(list[I]...)); }
    (std::make_index_sequence<sizeof...(Inputs)>{});
  };
  return detail::from_list<Result>(recompute_list(run, {inputs...}));
}

/// A module whose forward (one tensor in, one out) is recomputed, for FullyShardOptions::wrap.
torch::nn::AnyModule recomputed(const std::string& name, torch::nn::AnyModule child);

}  // namespace tessera::shard
