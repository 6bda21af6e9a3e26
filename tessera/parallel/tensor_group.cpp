// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/tensor_group.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <map>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/plan/spans.h"

namespace tessera::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kFirstRoom = 64;  // samples of a first message

/// What both directions of an exchange need.
struct Exchange {
  mesh::Group* ranks;
  std::vector<int64_t> counts;
  std::string what;

  void save(AutogradContext* ctx) const {
    ctx->saved_data["ranks"] = reinterpret_cast<int64_t>(ranks);
    ctx->saved_data["counts"] = counts;
    ctx->saved_data["what"] = what;
  }
  static Exchange saved(AutogradContext* ctx) {
    return {reinterpret_cast<mesh::Group*>(ctx->saved_data["ranks"].toInt()),
            ctx->saved_data["counts"].toIntVector(), ctx->saved_data["what"].toStringRef() + ", backward"};
  }
};

class Enter : public torch::autograd::Function<Enter> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows, const Exchange& exchange) {
    exchange.save(ctx);
    return exchange.ranks->gather_rows(rows, exchange.counts, exchange.what).wait();
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const Exchange exchange = Exchange::saved(ctx);
    const at::Tensor& partial = gradients[0];
    const at::Tensor sum = exchange.ranks->sum_rows(partial, exchange.counts, exchange.what).wait();
    return {sum.to(partial.scalar_type()), at::Tensor()};
  }
};

class Leave : public torch::autograd::Function<Leave> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& partial,
                            const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& residual,
                            const std::optional<at::Tensor>& known, const Exchange& exchange) {
    exchange.save(ctx);
    ctx->saved_data["bias"] = bias.has_value();
    ctx->saved_data["residual"] = residual.has_value();
    if (known) return known->clone();  // autograd wants a tensor of its own
    at::Tensor sum = exchange.ranks->sum_rows(partial, exchange.counts, exchange.what).wait();
    if (bias) sum.add_(*bias);
    if (residual) sum.add_(*residual);
    return sum.to(partial.scalar_type());
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const Exchange exchange = Exchange::saved(ctx);
    const at::Tensor& gradient = gradients[0];
    const at::Tensor of_partial =
        exchange.ranks->gather_rows(gradient, exchange.counts, exchange.what).wait();
    at::Tensor of_bias;
    if (ctx->saved_data["bias"].toBool()) {
      const auto wide = gradient.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
      of_bias = gradient.reshape({-1, gradient.size(-1)}).sum(0, /*keepdim=*/false, wide);
      of_bias = of_bias.to(gradient.scalar_type());
    }
    return {of_partial, of_bias, ctx->saved_data["residual"].toBool() ? gradient : at::Tensor(), at::Tensor(),
            at::Tensor()};
  }
};

std::optional<at::Tensor> given(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

}  // namespace

at::Tensor TensorGroup::enter(const at::Tensor& rows, const GroupSamples& samples,
                              const std::string& what) const {
  return Enter::apply(rows, Exchange{&ranks_, samples.counts, what});
}

at::Tensor TensorGroup::gather_again(const at::Tensor& rows, const GroupSamples& samples,
                                     const std::string& what) const {
  return ranks_.gather_rows(rows, samples.counts, what + ", again").wait();
}

at::Tensor TensorGroup::leave(const at::Tensor& partial, const Summands& summands,
                              const GroupSamples& samples, const std::string& what,
                              const at::Tensor& known) const {
  return Leave::apply(partial, given(summands.bias), given(summands.residual), given(known),
                      Exchange{&ranks_, samples.counts, what});
}

TensorGroups::TensorGroups(const plan::Plan& plan, mesh::Mesh& mesh) {
  std::map<plan::Span, size_t> indices;
  for (const plan::UnitPlan& unit : plan.units) {
    if (!unit.is_cut()) continue;
    const auto [index, is_new] = indices.emplace(plan::tensor_span(plan, unit), members_.size());
    if (is_new) members_.push_back({&mesh.group(index->first), kFirstRoom});
    // What runs again gathers in backward anyway, right before it is needed.
    by_unit_.emplace(unit.name, TensorGroup(*members_[index->second].ranks, index->second,
                                            unit.keep_gathered || unit.recomputes()));
  }
}

TensorGroups::~TensorGroups() = default;

const TensorGroup* TensorGroups::of(const std::string& unit) const {
  const auto found = by_unit_.find(unit);
  return found == by_unit_.end() ? nullptr : &found->second;
}

std::vector<GroupSamples> TensorGroups::exchange(std::span<const uint64_t> mine) {
  std::vector<GroupSamples> all;
  for (Member& member : members_) all.push_back(exchange(member, mine));
  return all;
}

// A message is a count and room for so many samples. Where one rank has more, every rank sees its count, and
// all send again with more room, which later messages keep.
GroupSamples TensorGroups::exchange(Member& member, std::span<const uint64_t> mine) {
  const auto ranks = member.ranks->size(), count = static_cast<int64_t>(mine.size());
  for (;;) {
    const int64_t length = 1 + member.room;
    at::Tensor message = at::zeros({length}, at::kLong), all = at::empty({ranks, length}, at::kLong);
    auto* numbers = message.mutable_data_ptr<int64_t>();
    numbers[0] = count;
    const auto fitting = std::min(count, member.room);
    std::copy_n(mine.begin(), fitting, reinterpret_cast<uint64_t*>(numbers) + 1);
    member.ranks->all_gather(all.view({-1}), message, "samples of the micro-batch").wait();
    GroupSamples samples;
    const auto* received = all.const_data_ptr<int64_t>();
    for (int64_t rank = 0; rank < ranks; ++rank) samples.counts.push_back(received[rank * length]);
    const int64_t most = std::ranges::max(samples.counts);
    if (most <= member.room) {
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const auto* first = reinterpret_cast<const uint64_t*>(received) + rank * length + 1;
        samples.numbers.insert(samples.numbers.end(), first, first + samples.counts[rank]);
      }
      return samples;
    }
    member.room = 2 * most;
  }
}

}  // namespace tessera::parallel
