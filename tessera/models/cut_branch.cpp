// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/cut_branch.h"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "tessera/base/error.h"

namespace tessera::models {

const parallel::GroupSamples& CutBranch::samples(const ForwardContext& context) const {
  TESSERA_CHECK(group_->index() < context.tensor_groups.size(), name_,
                ": the context does not say which samples the ranks of its tensor group hold");
  return context.tensor_groups[group_->index()];
}

at::Tensor CutBranch::operator()(ops::LayerNormOutput own, const parallel::Summands& summands,
                                 const ForwardContext& context, const PartialLayers& layers) const {
  const at::Tensor known = known_sum(own.rows, context);
  const auto use = known.defined() ? ops::Use::kUnread : ops::Use::kRead;
  const auto layers_of = [&](const at::Tensor& gathered, const parallel::Piece& piece) {
    ops::LayerNormOutput rows{{}, {}, gathered};
    if (!group_->keeps_gathered()) {
      // Of x, or of what there is if no norm made the rows, they come again.
      rows.x = (own.x.defined() ? own.x : own.rows).narrow(0, piece.first, piece.count);
      rows.norm = own.norm;
      rows.gather = [group = group_, samples = piece.samples, name = name_](const at::Tensor& normed) {
        return group->gather_again(normed, samples, name);
      };
    }
    return layers(std::move(rows), piece.samples, use);
  };
  const at::Tensor sum = group_->run({own.rows, summands, samples(context), name_, known}, layers_of);
  if (context.sums && !context.sums->is_again && context.sums->keeps && value_again_)
    context.sums->sums.push_back(sum.detach());
  return sum;
}

/// Of a second run: the sum of the first, or anything if nothing reads it. Undefined: it must be made.
at::Tensor CutBranch::known_sum(const at::Tensor& rows, const ForwardContext& context) const {
  if (!context.sums || !context.sums->is_again) return {};
  if (!value_again_) return rows.detach();
  return context.sums->keeps ? context.sums->sums.at(context.sums->next++) : at::Tensor();
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Rows : torch::CustomClassHolder {
  explicit Rows(ops::LayerNormOutput given) : rows(std::move(given)) {}
  ops::LayerNormOutput rows;
};

/// Other ranks' layers may gather the rows again in backward, and have gradients of their parameters then:
/// so does this, whose gradients are zero.
class NoShare : public torch::autograd::Function<NoShare> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows, int64_t tokens,
                            const c10::intrusive_ptr<Rows>& again, at::TensorList parameters) {
    ctx->saved_data["shape"] = rows.sizes().vec();
    ctx->save_for_backward(parameters.vec());
    if (again->rows.gather) ctx->saved_data["again"] = c10::IValue::make_capsule(again);
    return at::zeros({rows.size(0), tokens, rows.size(2)}, rows.options());
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto again = ctx->saved_data.find("again");
    if (again != ctx->saved_data.end())
      ops::made_again(c10::static_intrusive_pointer_cast<Rows>(again->second.toCapsule())->rows);
    variable_list all = {at::zeros(ctx->saved_data["shape"].toIntVector(), gradients[0].options()),
                         at::Tensor(), at::Tensor()};
    for (const at::Tensor& parameter : ctx->get_saved_variables()) all.push_back(at::zeros_like(parameter));
    return all;
  }
};

}  // namespace

at::Tensor nothing_of(ops::LayerNormOutput rows, int64_t tokens, const std::vector<at::Tensor>& parameters) {
  const at::Tensor all = std::move(rows.rows);
  return NoShare::apply(all, tokens, c10::make_intrusive<Rows>(std::move(rows)), at::TensorList(parameters));
}

}  // namespace tessera::models
